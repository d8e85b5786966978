"""Runs of ours as folders that plain transformers loads: classes, refusals, tokenizers, memory."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import load, save, tiny
from torch import Tensor
from transformers import AutoTokenizer

from mlpkit.build import build_model
from mlpkit.cli import main
from mlpkit.compose import compose
from mlpkit.convert import ConversionError, WeightsError, export_model, read_checkpoint
from mlpkit.convert.matching import Vocabulary
from mlpkit.convert.sources import Memory
from mlpkit.convert.tokenizer_files import byte_tokenizer
from mlpkit.convert.writing import write_file
from mlpkit.data import build_tokenizer
from mlpkit.training import load_run

SMALL = [
    "model.hidden_size=16",
    "model.num_layers=2",
    "model.num_attention_heads=4",
    "model.vocab_size=300",
]
MOE = ["ffn=moe", "ffn.num_experts=4", "ffn.expert.intermediate_size=12"]
NORMED = ["model.qk_norm=true"]
DENSE = ["+ffn@ffns.dense=swiglu", "ffns.dense.intermediate_size=20"]
GLM = ["ffn=glm4_moe", "ffn.num_experts=4", "ffn.num_experts_per_tok=2"]
GLM += ["ffn.expert.intermediate_size=12", "ffn.shared.intermediate_size=24"]


def run_of(folder: Path, *overrides: str):
    """A configuration, and weights of it with nothing at its first value."""
    config = compose([*SMALL, *overrides])
    model = build_model(config, tokenizer=Vocabulary(300))
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors")
    return config


CLASSES: list[tuple[list[str], str]] = [
    ([], "LlamaForCausalLM"),
    (["ffn=gated", "activation=gelu_tanh"], "LlamaForCausalLM"),
    (["ffn=bilinear", "ffn.bias=true", "model.attention_bias=all"], "LlamaForCausalLM"),
    (["ffn=gated"], "LlamaForCausalLM"),
    (["model.attention_bias=qkv"], "Qwen2ForCausalLM"),
    (["model.head_dim=6", *NORMED], "Qwen3ForCausalLM"),
    (["ffn=naive"], "ArceeForCausalLM"),
    (["ffn=naive", "activation=relu2", "ffn.bias=true"], "ArceeForCausalLM"),
    (MOE, "MixtralForCausalLM"),
    ([*MOE, "ffn.expert=reglu"], "MixtralForCausalLM"),
    ([*MOE, *NORMED], "Qwen3MoeForCausalLM"),
    (
        [*MOE, *NORMED, "ffn.router.norm_topk_prob=false", *DENSE, "model.layers={0:dense}"],
        "Qwen3MoeForCausalLM",
    ),
    ([*MOE, *NORMED, "model.qk_norm_scope=all"], "OlmoeForCausalLM"),
    (
        [*MOE, "ffn/shared=swiglu", "ffn.shared_combine=gated", "model.attention_bias=qkv"],
        "Qwen2MoeForCausalLM",
    ),
    ([*GLM, *DENSE, "model.layers={0:dense}"], "Glm4MoeForCausalLM"),
    ([*GLM, *NORMED, "ffn.router.n_group=2"], "Glm4MoeForCausalLM"),
]


def written_class(folder: Path, overrides: list[str], *, verify: bool):
    """What is written for overrides."""
    config = run_of(folder, *(o.replace("ffn.expert=", "ffn/expert=") for o in overrides))
    return export_model(config, folder, folder / "hf", facts={}, tokenizer={}, verify=verify)


@pytest.mark.parametrize(("overrides", "architecture"), CLASSES)
def test_the_class_is_chosen_by_the_configuration(overrides, architecture, tmp_path):
    assert written_class(tmp_path, overrides, verify=False).architecture == architecture
    said = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert said["architectures"] == [architecture]


@pytest.mark.slow
@pytest.mark.parametrize(("overrides", "architecture"), CLASSES)
def test_the_class_computes_the_same(overrides, architecture, tmp_path):
    written = written_class(tmp_path, overrides, verify=True)
    assert written.difference is not None
    assert written.difference < 1e-4
    assert type(load(tmp_path / "hf")).__name__ == architecture


REFUSALS: list[tuple[list[str], str, str]] = [
    (["ffn=naive", *NORMED], "without a gate and qk-norm", "arcee"),
    (["ffn=naive", "ffn.inner_norm=rms"], "inner_norm", "arcee"),
    (["ffn=clamped_gated"], "the FFN 'clamped_gated'", "swiglu"),
    (["activation=softplus", "ffn=gated"], "the activation 'softplus'", "silu"),
    (["activation={name:leaky_relu,negative_slope:0.2}", "ffn=gated"], "negative_slope", "relu"),
    ([*NORMED, "ffn.bias=true"], "qk-norm with biases in the FFN", "qwen3"),
    ([*NORMED, "model.qk_norm_scope=all"], "qk_norm_scope=all", "qwen3"),
    (["model.attention_bias=qkv", "model.head_dim=6"], "head_dim=6", "share H"),
    ([*DENSE, "model.layers={0:dense}"], "differ between layers", "same FFN"),
    ([*MOE, *DENSE, "model.layers={0:dense}"], "no qk-norm", "model.qk_norm=true"),
    ([*MOE, "ffn.router.norm_topk_prob=false"], "norm_topk_prob=false", "mixtral"),
    ([*MOE, "ffn.capacity_factor=2"], "capacity_factor=2", "null"),
    ([*MOE, "ffn/expert=naive"], "experts with no gate", "swiglu"),
    ([*MOE, "ffn/shared=swiglu"], "a shared FFN (sum)", "qwen2_moe"),
    ([*MOE, "ffn/router=expert_choice"], "the router 'expert_choice'", "topk"),
    ([*MOE, "ffn/router=llama4"], "apply_on=input", "output"),
    ([*MOE, "ffn.router.score=sigmoid"], "a sigmoid router", "glm4_moe"),
    ([*MOE, "ffn.router.routed_scaling_factor=2"], "routed_scaling_factor=2", "glm4_moe"),
    ([*GLM[:-1], "ffn/shared=null"], "a sigmoid router with a selection bias", "glm4_moe"),
    (["ffn=gpt_oss", "ffn.num_experts=4"], "bias=True", "ffn.router.bias=False"),
]


@pytest.mark.parametrize(("overrides", "reason", "nearest"), REFUSALS)
def test_what_no_class_holds_is_refused_with_the_nearest_that_can(
    overrides, reason, nearest, tmp_path
):
    config = run_of(tmp_path, *overrides, "lint.allow=[non-causal]")
    with pytest.raises(ConversionError) as refused:
        export_model(config, tmp_path, tmp_path / "hf", facts={}, tokenizer={})
    said, _, offered = str(refused.value).partition("; nearest that one does: ")
    assert reason in said
    assert nearest in offered
    assert not (tmp_path / "hf").exists()


def test_a_difference_is_found_and_leaves_nothing(tmp_path, monkeypatch):
    config = run_of(tmp_path)
    monkeypatch.setattr(
        "mlpkit.convert.exporting.hf_config",
        lambda *args, real=export_model.__globals__["hf_config"]: {
            **real(*args),
            "hidden_act": "relu",
        },
    )
    with pytest.raises(ConversionError, match="logits that differ by"):
        export_model(config, tmp_path, tmp_path / "hf", facts={}, tokenizer={})
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_an_existing_folder_and_foreign_weights_are_refused(tmp_path):
    config = run_of(tmp_path)
    (tmp_path / "hf").mkdir()
    with pytest.raises(ConversionError, match="hf exists"):
        export_model(config, tmp_path, tmp_path / "hf", facts={}, tokenizer={})
    other = compose([*SMALL, "ffn.intermediate_size=32"])
    with pytest.raises(WeightsError, match=r"down_proj\.weight is .* says \(16, 32\)"):
        export_model(other, tmp_path, tmp_path / "new", facts={}, tokenizer={})


def test_large_models_are_written_in_shards(tmp_path):
    config = run_of(tmp_path, *MOE)
    export_model(config, tmp_path, tmp_path / "hf", facts={}, tokenizer={}, shard_bytes=8_000)
    files = sorted(path.name for path in (tmp_path / "hf").glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    tensors = [load_file(tmp_path / "hf" / name) for name in files]
    assert {n: f for f, t in zip(files, tensors, strict=True) for n in t} == index["weight_map"]
    sizes = [sum(t.nbytes for t in shard.values()) for shard in tensors]
    assert index["metadata"]["total_size"] == sum(sizes)
    assert len(files) > 2


class Counting(Memory):
    """Hands out copies, and knows the most bytes that were alive at one time."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__(tensors)
        self.alive = self.most = 0

    def get(self, name: str) -> Tensor:
        tensor = super().get(name).clone()
        self.alive += tensor.nbytes
        self.most = max(self.most, self.alive)
        weakref.finalize(tensor, self._gone, tensor.nbytes)
        return tensor

    def _gone(self, size: int) -> None:
        self.alive -= size


def test_converting_holds_a_part_of_one_layer_in_memory(tmp_path):
    theirs = tiny("qwen3_moe", num_hidden_layers=6, vocab_size=300)
    read = read_checkpoint(save(theirs, tmp_path / "hf"))
    counting = Counting({name: read.source.get(name) for name in read.source.entries})
    object.__setattr__(read, "source", counting)
    gc.disable()  # what is only freed by the collector counts as alive
    try:
        read.write_weights(tmp_path / "model.safetensors")
    finally:
        gc.enable()
    total = sum(tensor.nbytes for tensor in theirs.state_dict().values())
    embedding = 300 * 16 * 4  # the largest that is written at once
    assert counting.most == embedding
    assert embedding < total / 4
    assert counting.alive == 0


def test_a_tensor_that_changes_while_it_is_read_is_refused(tmp_path):
    theirs = tiny("llama")
    read = read_checkpoint(save(theirs, tmp_path / "hf"))
    tensors = {name: read.source.get(name) for name in read.source.entries}
    tensors["model.norm.weight"] = torch.ones(17)
    object.__setattr__(read.source, "get", tensors.__getitem__)
    with pytest.raises(WeightsError, match=r"norm\.weight became .*\(17,\).*\(16,\)"):
        read.write_weights(tmp_path / "model.safetensors")


def test_a_file_is_that_of_the_library_whatever_the_precisions(tmp_path):
    from mlpkit.convert.sources import Entry
    from mlpkit.convert.writing import Piece

    tensors = {
        "half": torch.randn(3, 5).bfloat16(),
        "wide": torch.randn(7).double(),
        "empty": torch.zeros(0, 4),
        "turned": torch.randn(4, 3).T,
        "one": torch.arange(4.0)[1::3],
        "number": torch.tensor(2.5, dtype=torch.float16),
    }
    entries = {n: Entry(tuple(t.shape), t.dtype, "") for n, t in tensors.items()}
    write_file(tmp_path / "x.safetensors", [Piece(entries, lambda: tensors)])
    found = load_file(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys()
    assert all(found[name].equal(tensor) for name, tensor in tensors.items())
    assert all(found[name].dtype == tensor.dtype for name, tensor in tensors.items())


def test_the_bytes_tokenizer_encodes_as_ours_for_every_character(tmp_path):
    for name, content in byte_tokenizer().items():
        (tmp_path / name).write_bytes(content)
    theirs, own = AutoTokenizer.from_pretrained(tmp_path), build_tokenizer("bytes")
    assert (len(theirs), theirs.eos_token_id) == (257, 256)
    planes = [chr(c) for c in range(0x3000) if not 0xD800 <= c < 0xE000] + ["\U0001f600", "𝒳"]
    text = "".join(planes) + "  two  spaces\r\n\ttab  "
    ids = theirs(text)["input_ids"]
    assert ids == own.encode(text.encode()).tolist()
    assert theirs.decode(ids) == text
    assert theirs.decode([104, 105, 256], skip_special_tokens=True) == "hi"


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_text) -> Path:
    """A run of a few steps of a tiny default model."""
    root = tmp_path_factory.mktemp("trained")
    overrides = ["data=text", f"data.path={tiny_text}", "data.val_fraction=0.1", "training=quick"]
    overrides += ["model.hidden_size=32", "model.num_layers=2", "training.max_steps=12"]
    overrides += ["training.batch_size=8", "training.sequence_length=32", f"run_dir={root / 'run'}"]
    overrides += ["training.eval_every=12", "training.eval_tokens=200", "training.sample_tokens=0"]
    assert main(["train", *overrides]) == 0
    return root / "run"


def test_a_trained_run_generates_the_same_tokens_in_transformers(trained, tmp_path, capsys):
    capsys.readouterr()
    assert main(["export", str(trained), str(tmp_path / "hf")]) == 0
    printed = capsys.readouterr().out
    assert "LlamaForCausalLM" in printed
    assert "largest difference" in printed
    prompt, tokenizer = "line 1 of file 3: the", AutoTokenizer.from_pretrained(tmp_path / "hf")
    model = load(tmp_path / "hf")
    ids = tokenizer(prompt, return_tensors="pt")
    found = model.generate(**ids, max_new_tokens=40, do_sample=False)[0]
    model_of_ours, own, _ = load_run(trained)
    options = ["--prompt", prompt, "--temperature", "0", "--tokens", "40"]
    assert main(["generate", str(trained), *options]) == 0
    assert capsys.readouterr().out == tokenizer.decode(found, skip_special_tokens=True) + "\n"
    assert found[: len(prompt)].tolist() == own.encode(prompt.encode()).tolist()
    logits = model_of_ours(found[None])
    assert logits[0, len(prompt) - 1 : -1].argmax(-1).equal(found[len(prompt) :])


def test_a_run_comes_back_from_its_export_and_goes_out_again(trained, tmp_path, capsys):
    hf, again, run = (str(tmp_path / name) for name in ("hf", "again", "run"))
    assert main(["export", str(trained), hf, "--json"]) == 0
    account = json.loads(capsys.readouterr().out)
    assert account["architecture"] == "LlamaForCausalLM"
    assert account["largest_logit_difference"] < 1e-4
    assert account["tokenizer"] == ["tokenizer.json", "tokenizer_config.json"]
    assert main(["import", hf, run]) == 0
    printed = capsys.readouterr().out
    assert "family     llama" in printed
    assert "model.layers.*.mlp.gate_proj.weight → layers.*.ffn.gate_proj.weight" in printed
    assert main(["export", run, again]) == 0
    first, second = (load_file(Path(d) / "model.safetensors") for d in (trained, Path(run)))
    assert first.keys() == second.keys()
    assert all(tensor.equal(second[name]) for name, tensor in first.items())
    files = [sorted(p.name for p in Path(d).iterdir()) for d in (hf, again)]
    assert files[0] == files[1]
    assert (Path(hf) / "config.json").read_text() == (Path(again) / "config.json").read_text()
    capsys.readouterr()
    texts = []
    for directory in (str(trained), run):
        main(["generate", directory, "--prompt", "line", "--temperature", "0", "--tokens", "9"])
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


def test_a_model_without_a_tokenizer_says_so_and_is_exported_without_one(tmp_path, capsys):
    save(tiny("mixtral"), tmp_path / "hf")
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "run")]) == 0
    assert "tokenizer  none" in capsys.readouterr().out
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--no-verify"]) == 0
    printed = capsys.readouterr().out
    assert "tokenizer  none" in printed
    assert "not compared with transformers: not asked for" in printed
    assert not (tmp_path / "out" / "tokenizer.json").exists()
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "ok"
    assert result["imported"]["family"] == "mixtral"
    theirs = sum(p.numel() for p in tiny("mixtral").parameters())
    assert result["model"]["parameters"] == theirs
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "run")]) == 2
    assert "run exists" in capsys.readouterr().err


def test_a_tokenizer_is_copied_or_given_and_must_fit(tmp_path, capsys):
    save(tiny("llama"), tmp_path / "hf")
    for name, content in byte_tokenizer().items():
        (tmp_path / "hf" / name).write_bytes(content)
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "run")]) == 0
    model, tokenizer, config = load_run(tmp_path / "run")
    assert (tokenizer.vocab_size, model.embed_tokens.num_embeddings) == (257, 300)
    assert config.data.tokenizer == str(tmp_path / "run" / "tokenizer.json")
    save(tiny("llama", vocab_size=200), tmp_path / "small")
    given = ["--tokenizer", str(tmp_path / "hf")]
    assert main(["import", str(tmp_path / "small"), str(tmp_path / "new"), *given]) == 2
    assert "has ids up to 256, and the embedding has 200 rows" in capsys.readouterr().err
    assert main(["import", str(tmp_path / "small"), str(tmp_path / "new")]) == 0
