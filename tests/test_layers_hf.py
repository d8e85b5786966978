"""Hugging Face's spellings of which layers hold experts, against the layers transformers builds."""

from __future__ import annotations

import pytest
import torch

from mlpkit.layers import SPELLINGS, LayerPatternError, from_hf, layer_slots

transformers = pytest.importorskip("transformers")

LAYERS = 7
SIZES = {
    **{"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "pad_token_id": 0},
    **{"num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": LAYERS},
}
WORDS = ["dense", "sparse", "dense", "dense", "sparse", "sparse", "dense"]
# model type and what its config.json says → the pattern
BUILT = [
    ("qwen2_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [3]}, {"0,2-4,6": "dense"}),
    ("qwen2_moe", {"decoder_sparse_step": 1, "num_experts": 0}, {"0-6": "dense"}),
    ("qwen3_moe", {"decoder_sparse_step": 3}, {"every": 3, "others": "dense"}),
    ("qwen3_moe", {"decoder_sparse_step": 1, "mlp_only_layers": []}, None),
    ("qwen3_next", {"mlp_only_layers": [0, 6]}, {"0,6": "dense"}),
    ("deepseek_v2", {"first_k_dense_replace": 2}, {"0-1": "dense"}),
    ("deepseek_v3", {"first_k_dense_replace": 3}, {"0-2": "dense"}),
    ("deepseek_v3", {"first_k_dense_replace": 9}, {"0-6": "dense"}),
    ("glm4_moe", {"first_k_dense_replace": 1}, {"0": "dense"}),
    ("kimi_linear", {"first_k_dense_replace": 2}, {"0-1": "dense"}),
    ("axk1", {"first_k_dense_replace": 1, "moe_layer_freq": 2}, {"0-1,3,5": "dense"}),
    ("minimax_m3_vl_text", {"moe_layer_freq": [0, 1, 1, 1, 0, 1, 1]}, {"0,4": "dense"}),
    ("afmoe", {"num_dense_layers": 3}, {"0-2": "dense"}),
    (
        "lfm2_moe",
        {"num_dense_layers": 2, "layer_types": ["full_attention"] * LAYERS},
        {"0-1": "dense"},
    ),
    ("llama4_text", {"interleave_moe_layer_step": 2}, {"every": 2, "others": "dense"}),
    ("llama4_text", {"moe_layers": [0, 5], "interleave_moe_layer_step": 3}, {"1-4,6": "dense"}),
    (
        "jamba",
        {"expert_layer_period": 3, "expert_layer_offset": 1},
        {"every": 3, "offset": 1, "others": "dense"},
    ),
    ("jamba", {"expert_layer_period": 2, "num_experts": 1}, {"0-6": "dense"}),
    (
        "ernie4_5_moe",
        {"moe_layer_start_index": 1, "moe_layer_end_index": 4, "moe_layer_interval": 2},
        {"0,2,4-6": "dense"},
    ),
    ("ernie4_5_moe", {"moe_layer_interval": 3}, {"every": 3, "others": "dense"}),
    ("ernie4_5_moe", {"moe_layer_end_index": -1}, {"0": "dense"}),
    ("exaone_moe", {"mlp_layer_types": WORDS}, {"0,2-3,6": "dense"}),
]
# model type and its options, where the configuration itself translates them into words
TRANSLATED = [
    ("step3p5", {"moe_layers_enum": "3,4,6"}),
    (
        "dots3_note_text",
        {"moe_layer_freq": [1, 1, 1, 0, 1, 1, 1], "first_k_dense_replace": 2},
    ),
    ("dots3_note_text", {"moe_layer_freq": 3, "first_k_dense_replace": 1}),
]


def holds_experts(layer: torch.nn.Module) -> bool:
    return any(name.rpartition(".")[2] == "experts" for name, _ in layer.named_modules())


@pytest.mark.parametrize(("kind", "options", "pattern"), BUILT, ids=str)
def test_a_spelling_gives_experts_to_the_layers_that_have_them(kind, options, pattern):
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **options})
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config)
    built = [holds_experts(layer) for layer in model.layers]
    assert len(built) == LAYERS
    found = from_hf({"num_hidden_layers": LAYERS, **options})
    assert found == pattern
    for said in (found, from_hf(config.to_dict())):
        assert [slot == "main" for slot in layer_slots(said, LAYERS)] == built


@pytest.mark.parametrize(("kind", "options"), TRANSLATED, ids=str)
def test_a_spelling_is_what_the_configuration_makes_of_it(kind, options):
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **options})
    slots = layer_slots(from_hf({"num_hidden_layers": LAYERS, **options}), LAYERS)
    assert [{"main": "sparse"}.get(slot, slot) for slot in slots] == config.mlp_layer_types


def test_every_spelling_is_tried_above():
    tried = {key for _, options, _ in BUILT for key in options}
    tried |= {key for _, options in TRANSLATED for key in options}
    assert {key for keys, _ in SPELLINGS for key in keys} <= tried


def test_a_multimodal_configuration_is_read_by_its_text():
    config = {"model_type": "x", "text_config": {"num_hidden_layers": 4, "moe_layers": [3]}}
    assert from_hf(config) == {"0-2": "dense"}


def test_without_a_spelling_every_layer_is_main():
    assert from_hf({"num_hidden_layers": 4, "moe_layers": None}) is None


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"first_k_dense_replace": 1}, ("num_hidden_layers is None", "at least 1")),
        ({"decoder_sparse_step": 0}, ("decoder_sparse_step is 0", "at least 1")),
        ({"moe_layer_interval": 0}, ("moe_layer_interval is 0",)),
        ({"first_k_dense_replace": "1"}, ("first_k_dense_replace is '1'",)),
        ({"mlp_layer_types": ["dense", "sprase", "dense"]}, ("'sprase'", "dense, sparse")),
        ({"mlp_layer_types": ["dense"]}, ("num_hidden_layers is 3", "an entry for each")),
        ({"moe_layer_freq": [1]}, ("moe_layer_freq is [1]",)),
        ({"moe_layers": ["a"]}, ("moe_layers is ['a']", "by number")),
        ({"encoder_sparse_step": 2, "decoder_sparse_step": 2}, ("encoder_sparse_step",)),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_told_with_its_key(config, words):
    layers = {} if "None" in words[0] else {"num_hidden_layers": 3}
    with pytest.raises(LayerPatternError) as caught:
        from_hf({**layers, **config})
    for word in words:
        assert word in str(caught.value)
