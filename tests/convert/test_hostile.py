"""Folders that lie, are damaged or mean harm: one message with the file, nothing run or left."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny_models import save, tiny

from mlpkit.cli import main
from mlpkit.convert import ConversionError, WeightsError, read_checkpoint
from mlpkit.convert.folders import INDEX, inside, weight_files
from mlpkit.convert.sources import Safetensors


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return (os.mkdir, (str(self.trace),))


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A good folder in one file, and the same in shards."""
    root = tmp_path_factory.mktemp("saved")
    model = tiny("llama")
    save(model, root / "single")
    save(model, root / "shards", max_shard_size="12KB")
    return root


def copied(saved: Path, kind: str, tmp_path: Path) -> Path:
    folder = tmp_path / "hf"
    folder.mkdir()
    for file in (saved / kind).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def weights_pickled(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps(Bomb(folder / "ran")))


def weights_torch(folder: Path) -> None:
    torch.save({"a": Bomb(folder / "ran")}, folder / "model.safetensors")


def weights_bin(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"a": Bomb(folder / "ran")}, folder / "pytorch_model.bin")


def weights_cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def weights_empty(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def weights_huge_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}")


def weights_shape(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({**tensors, name: tensors[name].T.contiguous()}, folder / "model.safetensors")


def weights_missing(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")


def weights_numbers(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(16, dtype=torch.int8)
    save_file(tensors, folder / "model.safetensors")


def weights_linked(folder: Path) -> None:
    (folder.parent / "elsewhere").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(folder.parent / "elsewhere")


def config(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        values = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**values, **changes}))

    return change


def config_text(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "config.json").write_text(text) and None


def indexed(name: object) -> Callable[[Path], None]:
    """The index puts one tensor into another file."""

    def change(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        index["weight_map"]["model.norm.weight"] = name
        (folder / INDEX).write_text(json.dumps(index))

    return change


def shard_twice(folder: Path) -> None:
    tensors = {"model.norm.weight": torch.ones(16)}
    save_file(tensors, folder / "extra.safetensors")
    indexed("extra.safetensors")(folder)


def shard_gone(folder: Path) -> None:
    next(folder.glob("model-00002*")).unlink()


HOSTILE: list[tuple[str, Callable[[Path], None], int, str]] = [
    ("single", weights_pickled, 4, r"model\.safetensors is a pickle"),
    ("single", weights_torch, 4, r"model\.safetensors is a pickle"),
    ("single", weights_bin, 4, r"pytorch_model\.bin, a pickle.*save_pretrained"),
    ("single", weights_cut, 4, r"model\.safetensors is damaged or cut short"),
    ("single", weights_empty, 4, r"model\.safetensors is damaged"),
    ("single", weights_huge_header, 4, r"model\.safetensors is damaged"),
    ("single", weights_shape, 4, r"model\.safetensors: model\.layers\.1\.mlp\.up_proj\.weight"),
    ("single", weights_missing, 4, r"has no model\.layers\.1\.mlp\.up_proj\.weight"),
    ("single", weights_numbers, 4, r"model\.safetensors: model\.norm\.weight is I8"),
    ("single", weights_linked, 4, "is a link to"),
    ("single", config(num_hidden_layers=10**9), 4, "num_hidden_layers 1,000,000,000"),
    ("single", config(num_hidden_layers=1), 4, r"no place for model\.layers\.1\."),
    ("single", config(num_hidden_layers=3), 4, r"has no model\.layers\.2\."),
    ("single", config(hidden_size=2**30), 4, "hidden_size 1073741824"),
    ("single", config(hidden_size=2**70), 2, "hidden_size is"),
    ("single", config(intermediate_size=2**30), 4, "intermediate_size 1,073,741,824"),
    ("single", config(intermediate_size=25), 4, "its configuration says"),
    ("single", config(vocab_size=301), 4, "vocab_size 301"),
    ("single", config(num_attention_heads=2**30, head_dim=2), 4, "num_attention_heads"),
    ("single", config(hidden_size="${oc.env:HOME}"), 2, "hidden_size is"),
    ("single", config_text("{"), 2, r"config\.json is not JSON"),
    ("single", config_text("[" * 100_000), 2, r"config\.json is not JSON"),
    ("single", config_text("[1]"), 2, r"config\.json holds a list"),
    ("shards", indexed("../hf/config.json"), 4, "no plain file name"),
    ("shards", indexed("/etc/passwd"), 4, "no plain file name"),
    ("shards", indexed(".."), 4, "no plain file name"),
    ("shards", indexed("a\x00b.safetensors"), 4, "no plain file name"),
    ("shards", indexed("config.json"), 4, r"config\.json is not a \.safetensors file"),
    ("shards", indexed(["x"]), 4, "should be a name"),
    ("shards", shard_twice, 4, r"model\.norm\.weight is in .* and again in"),
    ("shards", shard_gone, 4, r"model-00002-of-\d+\.safetensors is missing"),
]


@pytest.mark.parametrize(
    ("kind", "harm", "code", "message"), HOSTILE, ids=[f"{i}" for i in range(len(HOSTILE))]
)
def test_harm_is_refused_with_its_file_and_leaves_nothing(
    kind, harm, code, message, saved, tmp_path, capsys
):
    folder = copied(saved, kind, tmp_path)
    harm(folder)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((WeightsError, ConversionError), match=message):
        read_checkpoint(folder)
    assert main(["import", str(folder), str(tmp_path / "run")]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mlpkit: ")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_pth_that_would_run_code_does_not(tmp_path, capsys):
    torch.save({"model.norm.weight": Bomb(tmp_path / "ran")}, tmp_path / "x.pth")
    (tmp_path / "y.pth").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    for name in ("x.pth", "y.pth"):
        assert main(["import", str(tmp_path / name), str(tmp_path / "run")]) == 4
        assert f"{name} cannot be read as tensors alone" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.pth", "y.pth"]


def test_the_cache_of_the_hub_links_to_its_own_blobs_and_is_read(saved, tmp_path):
    blobs, snapshot = tmp_path / "models--x" / "blobs", tmp_path / "models--x" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted((saved / "single").iterdir())):
        (blobs / str(number)).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", str(number)))
    assert read_checkpoint(snapshot).family.name == "llama"
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to("/etc/hostname")
    with pytest.raises(WeightsError, match="is a link to /etc/hostname"):
        read_checkpoint(snapshot)


@settings(max_examples=200, deadline=None)
@given(name=st.text(max_size=12) | st.sampled_from(["..", ".", "a/..", "~", "C:x", "a\\b"]))
def test_no_name_leads_out_of_its_folder(name):
    folder = Path("/nowhere/folder")
    try:
        found = inside(folder, name)
    except WeightsError:
        return
    assert found.parent == folder
    assert Path(os.path.normpath(found)).parent == folder


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_changed_file_is_read_right_or_refused(data, saved, tmp_path):
    """Bytes changed, cut or added: an error of ours, or tensors of the sizes that were said."""
    good = (saved / "single" / "model.safetensors").read_bytes()
    content = bytearray(good)
    # mostly the header, where every byte means something
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, 1500) | st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    end = data.draw(st.just(len(content)) | st.integers(0, len(content)))
    (tmp_path / "model.safetensors").write_bytes(bytes(content[:end]))
    message = "model.safetensors"
    try:
        source = Safetensors(tmp_path)
        for name, entry in source.entries.items():
            tensor = source.get(name)
            assert (tuple(tensor.shape), tensor.dtype) == (entry.shape, entry.dtype)
    except WeightsError as error:
        message = str(error)
    assert "model.safetensors" in message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(index=st.dictionaries(st.just("weight_map") | st.text(max_size=8), JSON, max_size=3))
def test_any_index_is_read_or_refused(index, tmp_path):
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(WeightsError):
        weight_files(tmp_path)


KEYS = ("hidden_size", "num_hidden_layers", "rms_norm_eps", "head_dim", "rope_parameters")


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(key=st.sampled_from(KEYS), value=JSON)
def test_any_value_in_a_config_is_read_or_refused(key, value, saved, tmp_path):
    folder = tmp_path / "hf"
    if not folder.exists():
        copied(saved, "single", tmp_path)
        (folder / "good.json").write_bytes((folder / "config.json").read_bytes())
    values = json.loads((folder / "good.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, key: value}))
    message = "config.json"
    try:
        read_checkpoint(folder)
    except (ConversionError, WeightsError) as error:
        message = str(error)
    assert "config.json" in message
    assert "\n" not in message
