"""Checkpoints: whole or not there, verified before they are read, and never run."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo

from mlpkit.configs.run import TrainingConfig
from mlpkit.training.checkpoints import CheckpointError, CheckpointStore, open_checkpoint
from mlpkit.training.checkpoints.reading import forms, read_tensors
from mlpkit.training.measures import DiskSpaceError, require_space
from mlpkit.training.snapshot import bytes_needed, restore, snapshot


def some_tensors() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    return {
        "float32": torch.randn(3, 5, generator=g),
        "transposed": torch.randn(4, 2, generator=g).t(),
        "bfloat16": torch.randn(7, generator=g).bfloat16(),
        "int64": torch.arange(3),
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 4),
        "special": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
    }


def blank(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


def bits(tensors: dict[str, Tensor]) -> dict[str, bytes]:
    return {
        name: tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        for name, tensor in tensors.items()
        if tensor.numel()
    }


def load(path: Path, like: dict[str, Tensor]) -> dict[str, Tensor]:
    found = blank(like)
    read_tensors(open_checkpoint(path).path, found)
    return found


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    CheckpointStore(tmp_path / "checkpoints").save(3, some_tensors(), {"note": "x"})
    return tmp_path / "checkpoints" / "step_3"


def test_every_bit_comes_back(saved: Path) -> None:
    tensors = some_tensors()
    found = load(saved, tensors)
    scalar = tensors.pop("scalar"), found.pop("scalar")
    assert torch.equal(*scalar)
    assert bits(found) == bits(tensors)
    assert open_checkpoint(saved).state == {"step": 3, "note": "x"}
    assert {p.name for p in saved.iterdir()} == {
        "manifest.json",
        "state.json",
        ".metadata",
        "__0_0.distcp",
    }
    manifest = json.loads((saved / "manifest.json").read_text())
    for name, entry in manifest["files"].items():
        content = (saved / name).read_bytes()
        assert entry == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def test_no_path_of_this_machine_gets_into_a_checkpoint(saved: Path) -> None:
    for file in saved.iterdir():
        assert str(saved.parent).encode() not in file.read_bytes()


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=2)
    for step, score in ((10, 3.0), (20, 1.5), (30, None), (40, 2.0), (50, 2.5)):
        store.save(step, {"a": torch.tensor([step])}, {"val_bpb": score})
    assert store.steps() == [50, 40, 20]
    assert load(tmp_path / "step_20", {"a": torch.tensor([0])})["a"].item() == 20
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_the_newest_that_is_whole_is_found_and_the_others_are_named(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=5)
    assert store.newest() == (None, [])
    for step in (1, 2, 3, 10):
        store.save(step, some_tensors(), {})
    flip(tmp_path / "step_10" / "__0_0.distcp", 100)
    (tmp_path / "step_3" / ".metadata").unlink()
    shutil.copytree(tmp_path / "step_2", tmp_path / "step_05")  # no step is called that
    found, wrong = store.newest()
    assert found is not None
    assert found.step == 2
    assert "step_10/__0_0.distcp is damaged: its sha256" in wrong[0]
    assert "step_3 lacks .metadata" in wrong[1]


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


FILES = ("manifest.json", "state.json", ".metadata", "__0_0.distcp")


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def swap_for_link(path: Path) -> None:
    copy = path.parent.parent / "elsewhere"
    shutil.move(path, copy)
    path.symlink_to(copy)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", [truncate, Path.unlink, swap_for_link])
def test_a_damaged_file_is_named(saved: Path, file: str, damage: Callable[[Path], None]) -> None:
    damage(saved / file)
    with pytest.raises(CheckpointError, match=file.replace(".", r"\.")) as caught:
        open_checkpoint(saved)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 4


def test_a_flipped_bit_anywhere_in_the_data_is_seen(saved: Path) -> None:
    for file in ("state.json", ".metadata", "__0_0.distcp"):
        size = (saved / file).stat().st_size
        for place in (0, size // 2, size - 1):
            flip(saved / file, place)
            with pytest.raises(CheckpointError, match=rf"{file} is damaged: its sha256"):
                open_checkpoint(saved)
            flip(saved / file, place)
    open_checkpoint(saved)


def test_what_does_not_belong_there_is_refused(saved: Path, tmp_path: Path) -> None:
    (saved / "more.bin").touch()
    with pytest.raises(CheckpointError, match=r"holds more\.bin, which is foreign"):
        open_checkpoint(saved)
    (saved / "more.bin").unlink()
    (tmp_path / "step_3").symlink_to(saved)
    with pytest.raises(CheckpointError, match="is a link"):
        open_checkpoint(tmp_path / "step_3")
    with pytest.raises(CheckpointError, match="is no folder; give"):
        open_checkpoint(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"not a whole checkpoint: it has no manifest\.json"):
        open_checkpoint(tmp_path)
    saved.rename(saved.with_name("step_4"))
    with pytest.raises(CheckpointError, match="of step 3"):
        open_checkpoint(saved.with_name("step_4"))


def sign(folder: Path) -> None:
    """Makes the manifest fit whatever the files are now, as someone with bad intentions would."""
    files = {}
    for path in sorted(folder.iterdir()):
        if path.name != "manifest.json":
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            files[path.name] = {"bytes": len(content), "sha256": digest}
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "files": files}))


class Evil:
    """What runs code when it is unpickled."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.flag}",)


def rewrite(folder: Path, change: Callable[[dcp.Metadata], object]) -> None:
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    path.write_bytes(pickle.dumps(change(metadata) or metadata))
    sign(folder)


def test_code_in_the_metadata_does_not_run(saved: Path, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    rewrite(saved, lambda metadata: Evil(flag))
    with pytest.raises(CheckpointError, match=r"asks for posix\.system, which no checkpoint needs"):
        load(saved, some_tensors())

    def hide(metadata: dcp.Metadata) -> None:
        metadata.planner_data = Evil(flag)

    rewrite_from(saved, hide)
    with pytest.raises(CheckpointError, match=r"posix\.system"):
        forms(open_checkpoint(saved).path)
    assert not flag.exists()


def rewrite_from(folder: Path, change: Callable[[dcp.Metadata], object]) -> None:
    shutil.rmtree(folder)
    CheckpointStore(folder.parent).save(3, some_tensors(), {})
    rewrite(folder, change)


def test_code_in_the_tensors_does_not_run(saved: Path, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    torch.save(Evil(flag), saved / "__0_0.distcp")
    size = (saved / "__0_0.distcp").stat().st_size

    def point(metadata: dcp.Metadata) -> None:
        for info in metadata.storage_data.values():
            info.offset, info.length = 0, size

    rewrite(saved, point)
    with pytest.raises(CheckpointError, match="holds something else than tensors"):
        load(saved, some_tensors())
    assert not flag.exists()


@pytest.mark.parametrize("name", ["../outside.distcp", "/etc/passwd", "a/b", "..", "", "..\\x"])
def test_the_metadata_cannot_lead_out_of_the_folder(saved: Path, name: str) -> None:
    shutil.copy(saved / "__0_0.distcp", saved.parent / "outside.distcp")

    def lead_out(metadata: dcp.Metadata) -> None:
        for index in metadata.storage_data:
            metadata.storage_data[index] = _StorageInfo(name, 0, 10)

    rewrite(saved, lead_out)
    with pytest.raises(CheckpointError, match="outside its folder"):
        load(saved, some_tensors())


def test_what_is_no_tensor_is_not_read(saved: Path) -> None:
    def add(metadata: dcp.Metadata) -> None:
        metadata.state_dict_metadata["x"] = dcp.BytesStorageMetadata()

    rewrite(saved, add)
    with pytest.raises(CheckpointError, match="BytesStorageMetadata"):
        forms(saved)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("int64"), "int64 is in it and not in the model"),
        (lambda t: t.update(new=torch.zeros(2)), "new is missing in it"),
        (
            lambda t: t.update(float32=torch.zeros(3, 6)),
            r"float32 is float32 \(3, 5\) in it and float32 \(3, 6\) in the model",
        ),
        (
            lambda t: t.update(float32=torch.zeros(3, 5, dtype=torch.float64)),
            r"float32 is float32 \(3, 5\) in it and float64 \(3, 5\) in the model",
        ),
    ],
)
def test_another_model_is_refused_with_the_differences(
    saved: Path, change: Callable[[dict[str, Tensor]], object], said: str
) -> None:
    wanted = some_tensors()
    change(wanted)
    before = bits(wanted)
    with pytest.raises(CheckpointError, match=f"is of another model: {said}"):
        read_tensors(saved, wanted)
    assert bits(wanted) == before


def test_many_differences_are_counted(saved: Path) -> None:
    with pytest.raises(CheckpointError, match=r"; and 4 more$"):
        read_tensors(saved, {"other": torch.zeros(1)})


class Full(OSError):
    """What the system says when a disk is full."""

    def __init__(self) -> None:
        super().__init__(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("where", ["begin", "shard", "writing", "metadata", "state", "manifest"])
def test_a_full_disk_leaves_the_last_checkpoint_and_says_so(tmp_path: Path, where: str) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, some_tensors(), {})

    def stage(name: str) -> None:
        if name == where:
            raise Full

    store.stage = stage
    message = r"step 2 could not be written .*no space is left: it needs \d+ bytes, [\d,]+ are free"
    with pytest.raises(CheckpointError, match=message) as caught:
        store.save(2, some_tensors(), {})
    assert "the last good checkpoint is step_1" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["step_1"]
    open_checkpoint(tmp_path / "step_1")


def test_a_folder_that_cannot_be_written_is_named() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        store = CheckpointStore(folder / "checkpoints")
        store.save(1, some_tensors(), {})
        folder.chmod(0o755)
        store.folder.chmod(0o555)
        if root := os.geteuid() == 0:  # whom no mode stops
            os.seteuid(65534)
        try:
            with pytest.raises(CheckpointError, match=r"step 2 .*PermissionError.*step_1, and"):
                store.save(2, some_tensors(), {})
        finally:
            if root:
                os.seteuid(0)
        open_checkpoint(store.folder / "step_1")
    finally:
        (folder / "checkpoints").chmod(0o755)
        shutil.rmtree(folder)


def test_a_damaged_checkpoint_of_the_same_step_is_replaced(saved: Path) -> None:
    flip(saved / "__0_0.distcp", 5)
    store = CheckpointStore(saved.parent)
    store.save(3, some_tensors(), {})
    assert store.newest()[1] == []


def test_leftovers_are_no_checkpoints_and_are_swept(saved: Path) -> None:
    store = CheckpointStore(saved.parent)
    shutil.copytree(saved, saved.with_name(".tmp-step_9"))
    shutil.copytree(saved, saved.with_name(".tmp-old-step_1"))
    assert store.steps() == [3]
    assert store.sweep() == [".tmp-old-step_1", ".tmp-step_9"]
    assert [p.name for p in saved.parent.iterdir()] == ["step_3"]


def test_in_the_background_the_state_of_now_is_written_and_never_two_at_once(
    tmp_path: Path,
) -> None:
    go, active, most = threading.Event(), [0], [0]

    def stage(name: str) -> None:
        if name == "begin":
            active[0] += 1
            most[0] = max(most[0], active[0])
            assert go.wait(20)
        active[0] -= name == "committed"

    value = torch.tensor([1.0])
    with CheckpointStore(tmp_path, background=True, stage=stage) as store:
        store.save(1, {"a": value}, {})
        value.fill_(7.0)  # training goes on
        assert store.steps() == []
        go.set()
        store.save(2, {"a": value}, {})
        value.fill_(9.0)
    assert most == [1]
    assert load(tmp_path / "step_1", {"a": value})["a"].item() == 1.0
    assert load(tmp_path / "step_2", {"a": value})["a"].item() == 7.0


def test_a_failure_in_the_background_comes_out_at_the_next_save(tmp_path: Path) -> None:
    def stage(name: str) -> None:
        if name == "metadata":
            raise Full

    store = CheckpointStore(tmp_path, background=True, stage=stage)
    store.save(1, some_tensors(), {})
    with pytest.raises(CheckpointError, match=r"step 1 .*no space"):
        store.save(2, some_tensors(), {})
    store.wait()
    assert list(tmp_path.iterdir()) == []


def test_an_optimizer_comes_back_to_the_bit_also_where_a_parameter_had_no_step(
    tmp_path: Path,
) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.ModuleDict({"used": nn.Linear(4, 3), "unused": nn.Linear(2, 2)})
        return model, torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
        model["used"](x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    model, optimizer = make()
    for _ in range(3):
        step(model, optimizer, x)
    CheckpointStore(tmp_path).save(3, snapshot(model, optimizer), {})
    step(model, optimizer, x)
    other, other_optimizer = make()
    restore(tmp_path / "step_3", other, other_optimizer)
    assert not any("unused" in name for name in forms(tmp_path / "step_3") if "optim" in name)
    step(other, other_optimizer, x)
    wanted, found = snapshot(model, optimizer), snapshot(other, other_optimizer)
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)


def test_the_room_for_checkpoints_is_asked_for_before_training(tmp_path: Path) -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    CheckpointStore(tmp_path).save(1, snapshot(model, optimizer), {"val_bpb": 1.0})
    real = sum(path.stat().st_size for path in (tmp_path / "step_1").iterdir())
    weights = bytes_needed(model, TrainingConfig(checkpoint_every=0))
    assert 4 * (64 * 64 + 64) <= weights < 4 * (64 * 64 + 64) + 5000
    options = TrainingConfig(max_steps=10, checkpoint_every=1)
    one = (bytes_needed(model, options) - weights) / 4
    assert real <= one < 1.1 * real
    assert bytes_needed(model, options, present=3) == weights + one
    assert bytes_needed(model, options, present=9) == weights + one
    options = TrainingConfig(max_steps=10, checkpoint_every=6)
    assert bytes_needed(model, options) == weights + 2 * one
    require_space(tmp_path / "not" / "there", 1)
    with pytest.raises(DiskSpaceError, match=r"needs 10,000,000,000,000,000 bytes .*are free"):
        require_space(tmp_path / "not" / "there", 10**16)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    CheckpointStore(folder).save(3, some_tensors(), {"val_bpb": 1.5})
    return folder / "step_3"


CHANGES = st.tuples(
    st.sampled_from(FILES),
    st.sampled_from(["flip", "cut", "replace"]),
    st.floats(0, 1, exclude_max=True),
    st.binary(min_size=1, max_size=8),
)


def changed(folder: Path, change: tuple[str, str, float, bytes]) -> None:
    name, how, where, value = change
    content = bytearray((folder / name).read_bytes())
    place = int(where * len(content))
    if how == "flip":
        if content:  # a change before this one may have left nothing
            content[place] ^= value[0] or 1
    elif how == "cut":
        del content[place:]
    else:
        content[place : place + len(value)] = value
    (folder / name).write_bytes(content)


FUZZ = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@FUZZ
@given(st.lists(CHANGES, min_size=1, max_size=3))
def test_any_change_is_an_error_or_leaves_every_bit(
    original: Path, changes: list[tuple[str, str, float, bytes]]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "step_3"
        shutil.copytree(original, folder)
        for change in changes:
            changed(folder, change)
        try:
            checkpoint = open_checkpoint(folder)
            found = blank(some_tensors())
            read_tensors(folder, found)
        except CheckpointError:
            return
        assert checkpoint.state == {"step": 3, "val_bpb": 1.5}
        assert torch.equal(found.pop("scalar"), some_tensors()["scalar"])
        assert bits(found) == {k: v for k, v in bits(some_tensors()).items() if k != "scalar"}


@FUZZ
@given(st.lists(CHANGES.filter(lambda c: c[0] != "manifest.json"), min_size=1, max_size=3))
def test_any_change_with_a_manifest_to_match_is_an_error_or_numbers(
    original: Path, changes: list[tuple[str, str, float, bytes]]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "step_3"
        shutil.copytree(original, folder)
        for change in changes:
            changed(folder, change)
        sign(folder)
        said = ""
        try:
            open_checkpoint(folder)
            read_tensors(folder, blank(some_tensors()))
        except CheckpointError as error:
            said = str(error)
        assert len(said.splitlines()) <= 1
