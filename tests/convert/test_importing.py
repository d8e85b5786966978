"""Whole models of transformers there and back: logits, gradients, bits, every tensor's account."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import CASES, imported, load, ours, save, tiny, tokens
from torch import nn
from transformers import AutoConfig

from mlpkit.build import BuildError, build_model
from mlpkit.compose import compose
from mlpkit.convert import FAMILIES, ConversionError, WeightsError, export_model, read_checkpoint
from mlpkit.convert.matching import match
from mlpkit.convert.sources import Memory
from mlpkit.model import Attention
from mlpkit.sizing import ModelShapeError

# The class that holds a family on the way back, where it is another.
WRITTEN_AS = {"mistral": "llama"}


def mixed_gradients(model: nn.Module, logits: torch.Tensor) -> dict[str, torch.Tensor]:
    """Gradients of a random mix of the logits, zero where there is none."""
    probe = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
    named = dict(model.named_parameters())
    found = torch.autograd.grad(
        (logits * probe).sum(), list(named.values()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(named, found, strict=True))


# Cases of a family already tried differ in an option alone.
AGAIN = ("llama-gelu", "qwen3-tied-biased", "arcee-silu")


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] if c in AGAIN else []) for c in CASES]
)
def test_a_model_is_the_same_here_and_after_going_back(case, tmp_path):
    theirs, read, model = imported(case, tmp_path)
    ids = tokens()
    expected, found = theirs(ids).logits, model(ids)
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)

    wanted, gradients = mixed_gradients(theirs, expected), mixed_gradients(model, found)
    counts = {"s": 1}
    for move in match(read.family, gradients, Memory(wanted), counts).moves:
        for name, gradient in move.read(wanted.__getitem__).items():
            # an element is a sum whose terms are as large as the largest one, and round as they do
            atol = max(1e-4, 2e-6 * float(gradient.abs().max()))
            torch.testing.assert_close(gradients.pop(name), gradient, rtol=1e-4, atol=atol)
    assert not gradients

    written = export_model(
        read.config, tmp_path, tmp_path / "out", facts=read.facts, tokenizer={}, verify=False
    )
    assert written.family == WRITTEN_AS.get(CASES[case][0], CASES[case][0])
    again = load(tmp_path / "out")
    torch.testing.assert_close(again(ids).logits, expected, rtol=1e-6, atol=1e-6)
    first, second = theirs.state_dict(), again.state_dict()
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)
    assert again.config.max_position_embeddings == theirs.config.max_position_embeddings
    assert (again.config.eos_token_id, again.config.bos_token_id) == (2, 1)


def test_every_tensor_is_accounted_for_with_what_became_of_it(tmp_path):
    _, read, model = imported("qwen3_moe-mixed", tmp_path)
    lines = {line["theirs"]: line for line in read.matching.summary()}
    assert sum(line["tensors"] for line in lines.values()) == len(read.source.entries)
    gate = lines["model.layers.*.mlp.experts.*.gate_proj.weight"]
    assert gate == {
        "theirs": "model.layers.*.mlp.experts.*.gate_proj.weight",
        "ours": "layers.*.ffn.experts.gate_proj.weight",
        "how": "stacked",
        "tensors": 2 * 4,
    }
    assert lines["model.layers.*.mlp.gate_proj.weight"]["tensors"] == 2
    assert lines["lm_head.weight"]["how"] == "as it is"
    named = {name for move in read.matching.moves for name in move.ours}
    assert named == set(model.state_dict())


def test_the_overrides_are_what_a_user_would_type_for_the_same_model(tmp_path):
    _, read, _ = imported("glm4_moe", tmp_path)
    typed = compose(list(read.overrides))
    assert typed.ffn == read.config.ffn
    assert typed.model == read.config.model
    assert "ffn=glm4_moe" in read.overrides


@pytest.mark.parametrize("layout", ["stacked", "listed"])
def test_experts_are_read_stacked_as_well_as_one_by_one(layout, tmp_path):
    """transformers 5 holds them stacked in memory, and other tools save them so."""
    theirs = tiny("mixtral")
    folder = save(theirs, tmp_path / "hf")
    if layout == "stacked":
        weights = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
        save_file(weights, folder / "model.safetensors")
    read = read_checkpoint(folder)
    how = {line["how"] for line in read.matching.summary()}
    assert how == {"as it is", "split" if layout == "stacked" else "stacked"}
    found = ours(read, tmp_path / "model.safetensors")(tokens())
    torch.testing.assert_close(found, theirs(tokens()).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", ["llama-tied-biased", "glm4_moe"])
def test_half_precision_keeps_its_bits_there_and_back(case, tmp_path):
    theirs = tiny(case, torch.bfloat16)
    read = read_checkpoint(save(theirs, tmp_path / "hf", max_shard_size="12KB"))
    model = ours(read, tmp_path / "model.safetensors")
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 1
    written = load_file(tmp_path / "model.safetensors")
    dtypes = {n: t.dtype for n, t in written.items()}
    biases = {n for n in dtypes if "correction_bias" in n}
    assert {dtypes[name] for name in dtypes.keys() - biases} == {torch.bfloat16}
    assert written["embed_tokens.weight"].equal(theirs.state_dict()["model.embed_tokens.weight"])
    assert all(dtypes[name] == torch.float32 for name in biases)
    export_model(read.config, tmp_path, tmp_path / "out", facts={}, tokenizer={}, verify=False)
    again = load(tmp_path / "out", torch.bfloat16).state_dict()
    assert all(tensor.equal(again[name]) for name, tensor in theirs.state_dict().items())
    wide = load(tmp_path / "hf")
    torch.testing.assert_close(model(tokens()), wide(tokens()).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [n for n in FAMILIES if not n.startswith("minimind")])
def test_what_a_class_takes_by_itself_is_what_transformers_takes(name):
    """A hub config.json leaves out what is as in the class: our table must say the same."""
    theirs = AutoConfig.for_model(name)
    known = theirs.to_dict()
    for key, value in FAMILIES[name].defaults.items():
        if key == "rope_theta":
            if not FAMILIES[name].block_only:
                assert known["rope_parameters"]["rope_theta"] == value
        elif key == "partial_rotary_factor":
            assert known["rope_parameters"][key] == value
        elif key in ("n_group", "topk_group") and known[key] is None:
            assert value == 1
        elif key in known or hasattr(theirs, key):
            assert getattr(theirs, key) == value, key
        else:
            raise AssertionError(f"{name} has no {key}")


def edited(tmp_path: Path, case: str = "llama", **changes: Any) -> Path:
    """A saved model whose config.json says something else."""
    folder = save(tiny(case), tmp_path / "hf")
    values = json.loads((folder / "config.json").read_text())
    values.update(changes)
    (folder / "config.json").write_text(json.dumps(values))
    return folder


SCALED = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}
PARTLY = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"rope_parameters": SCALED}, r"scaled \('llama3'\)"),
    ("llama", {"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "'linear'"),
    ("llama", {"rope_parameters": PARTLY}, r"partial_rotary_factor is 0\.5"),
    ("llama", {"rope_parameters": {"full_attention": SCALED}}, "each kind of layer"),
    ("mistral", {"sliding_window": 64}, "--allow sliding_window"),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 9}, "sliding_window is 9"),
    ("olmoe", {"clip_qkv": 8.0}, r"clip_qkv is 8\.0"),
    ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
    ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "read as LlamaForCausalLM"),
    ("llama", {"hidden_act": "swiglu"}, "hidden_act is 'swiglu'"),
    ("llama", {"hidden_act": "${oc.env:HOME}"}, "hidden_act is"),
    ("llama", {"model_type": "lama"}, "did you mean 'llama'"),
    ("llama", {"model_type": "deepseek_v3"}, "only the FFNs can be read"),
    ("llama", {"model_type": ["llama"]}, "model_type is"),
    ("llama", {"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5'"),
    ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
    ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
    ("llama", {"num_attention_heads": 3, "head_dim": None}, "no multiple of num_attention_heads"),
    ("qwen3_moe", {"num_local_experts": 10**6}, "at most 65,536"),
]


@pytest.mark.parametrize(("case", "changes", "message"), REFUSALS)
def test_what_cannot_be_held_is_refused_by_name(case, changes, message, tmp_path):
    folder = edited(tmp_path, case, **changes)
    with pytest.raises(ConversionError, match=message) as refused:
        read_checkpoint(folder)
    assert refused.value.exit_code == 2
    assert "config.json" in str(refused.value)


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("mistral", {"sliding_window": 64, "max_position_embeddings": 64}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {"sliding_window": 9}),  # use_sliding_window is false
        ("llama", {"rope_parameters": None, "rope_theta": 500.0, "rope_scaling": None}),
        ("llama", {"num_key_value_heads": 2, "pretraining_tp": 2, "unheard_of": 1}),
    ],
)
def test_what_changes_nothing_is_not_refused(case, changes, tmp_path):
    read = read_checkpoint(edited(tmp_path, case, **changes))
    assert read.config.model.rope_theta == (500.0 if case == "llama" else 10000.0)


def test_a_window_is_let_pass_when_it_is_asked_for(tmp_path):
    folder = edited(tmp_path, "mistral", sliding_window=64)
    read = read_checkpoint(folder, allow=["sliding_window"])
    model = ours(read, tmp_path / "model.safetensors")
    expected = load(folder)(tokens(length=60)).logits
    torch.testing.assert_close(model(tokens(length=60)), expected, rtol=1e-5, atol=3e-5)


def test_a_tied_head_that_is_saved_again_is_known_and_another_is_refused(tmp_path):
    theirs = tiny("llama-tied-biased")
    folder = save(theirs, tmp_path / "hf")
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(3)
    save_file(weights, folder / "model.safetensors")
    read = read_checkpoint(folder)
    how = {line["theirs"]: line["how"] for line in read.matching.summary()}
    assert how["lm_head.weight"] == "the embedding again"
    assert how["model.layers.*.self_attn.rotary_emb.inv_freq"] == "unused"
    weights["lm_head.weight"] += 1
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(WeightsError, match="tie_word_embeddings is true"):
        read_checkpoint(folder)


def test_tensors_without_a_place_are_named_and_dropped_on_request_alone(tmp_path):
    folder = save(tiny("llama"), tmp_path / "hf")
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "model.layers.2.mtp.weight": torch.ones(2)}, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"no place for model\.layers\.2\.mtp\.weight"):
        read_checkpoint(folder)
    read = read_checkpoint(folder, allow=["unused"])
    assert read.matching.unused == ("model.layers.2.mtp.weight",)
    with pytest.raises(ConversionError, match="it takes sliding_window, unused"):
        read_checkpoint(folder, allow=["all"])


def test_options_that_checkpoints_need_say_what_they_take():
    with pytest.raises(BuildError, match=r"model\.vocab_size is 200.*give at least 257, or null"):
        build_model(["model.vocab_size=200"])
    assert build_model(["model.vocab_size=300"]).embed_tokens.num_embeddings == 300
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1}
    with pytest.raises(ModelShapeError, match="attention_bias is 'some'; choose one of none, qkv"):
        Attention(**sizes, bias="some")
    with pytest.raises(ModelShapeError, match="qk_norm_scope is 'token'"):
        Attention(**sizes, qk_norm_scope="token")
