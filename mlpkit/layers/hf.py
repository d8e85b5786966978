"""Hugging Face's spellings of which layers hold experts, as one pattern of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlpkit.layers.patterns import DENSE, MAIN, LayerPatternError, compact
from mlpkit.registry import suggestion

Config = Mapping[str, Any]
Sparse = Callable[[int], bool]
TYPES = {"dense": False, "sparse": True, "moe": True, "hash_moe": True}


def from_hf(config: Config) -> dict[str, Any] | None:
    """The pattern of a decoder's configuration, with ``dense`` for the layers without experts.

    Args:
        config: What stands in a ``config.json``, or ``to_dict()`` of a configuration; of a
            multimodal one the ``text_config`` in it is read. Where several spellings stand, the
            first of ``SPELLINGS`` holds; where none does, every layer is ``main``.

    Returns:
        A pattern for as many layers as ``num_hidden_layers`` says; None: every layer is ``main``.

    Raises:
        LayerPatternError: No number of layers, an encoder's sparse step, or a value that the
            spelling does not have.
    """
    if "num_hidden_layers" not in config and isinstance(config.get("text_config"), Mapping):
        config = config["text_config"]
    num_layers = _number(config, "num_hidden_layers", None, minimum=1)
    if "encoder_sparse_step" in config:  # Switch and NLLB count each stack in their own way
        raise LayerPatternError(
            "encoder_sparse_step belongs to an encoder and decoder; patterns are for decoders: "
            "write model.layers by hand"
        )
    for keys, rule in SPELLINGS:
        if any(config.get(key) is not None for key in keys):
            sparse = rule(config, num_layers)
            return compact([MAIN if sparse(i) else DENSE for i in range(num_layers)])
    return None


def _types(config: Config, num_layers: int) -> Sparse:
    """A word for each layer: most families since transformers 5."""
    key = "mlp_layer_types"
    types = _list(config, key, num_layers)
    for word in types:
        if word not in TYPES:
            raise LayerPatternError(
                f"{key} has {word!r}{suggestion(str(word), TYPES)} (there are: {', '.join(TYPES)})"
            )
    return lambda layer: TYPES[types[layer]]


def _chosen(config: Config, num_layers: int) -> Sparse:
    """The layers with experts, one by one: Llama 4, and Step as text with commas."""
    key = "moe_layers" if config.get("moe_layers") is not None else "moe_layers_enum"
    value = config[key]
    items = value.split(",") if isinstance(value, str) else value
    try:
        chosen = {int(item) for item in items if str(item).strip()}
    except (TypeError, ValueError):
        raise LayerPatternError(f"{key} is {value!r}; list the layers by number") from None
    return lambda layer: layer in chosen


def _stepped(config: Config, num_layers: int) -> Sparse:
    """Every so many layers, except those listed as dense: Qwen 2 to 3."""
    step = _number(config, "decoder_sparse_step", 1, minimum=1)
    dense = config.get("mlp_only_layers") or ()
    experts = _number(config, "num_experts", 1)
    return lambda layer: layer not in dense and experts > 0 and (layer + 1) % step == 0


def _interleaved(config: Config, num_layers: int) -> Sparse:
    """Every so many layers: Llama 4 where its ``moe_layers`` is not given."""
    step = _number(config, "interleave_moe_layer_step", 1, minimum=1)
    return lambda layer: (layer + 1) % step == 0


def _offset(config: Config, num_layers: int) -> Sparse:
    """One layer of a period; with a single expert it is a dense FFN: Jamba."""
    period = _number(config, "expert_layer_period", 2, minimum=1)
    offset = _number(config, "expert_layer_offset", 1)
    experts = _number(config, "num_experts", 2)
    return lambda layer: experts > 1 and layer % period == offset


def _between(config: Config, num_layers: int) -> Sparse:
    """Every so many layers from one to another: Ernie 4.5."""
    start = _number(config, "moe_layer_start_index", 1)
    end = _number(config, "moe_layer_end_index", -1, minimum=-1)
    interval = _number(config, "moe_layer_interval", 1, minimum=1)
    last = num_layers - 1 if end == -1 else end
    return lambda layer: (layer + 1) % interval == 0 and start <= layer <= last


def _after_dense(config: Config, num_layers: int) -> Sparse:
    """Dense at first: DeepSeek, GLM, LFM 2; then one of so many, or as a list of 0 and 1 says."""
    first = _number(config, "first_k_dense_replace", 0)
    first = max(first, _number(config, "num_dense_layers", 0))
    if isinstance(config.get("moe_layer_freq"), Sequence):
        flags = _list(config, "moe_layer_freq", num_layers)
        return lambda layer: layer >= first and bool(flags[layer])
    frequency = _number(config, "moe_layer_freq", 1, minimum=1)
    return lambda layer: layer >= first and layer % frequency == 0


# Lists that name each layer come before the rules that they were made from.
SPELLINGS: tuple[tuple[tuple[str, ...], Callable[[Config, int], Sparse]], ...] = (
    (("mlp_layer_types",), _types),
    (("moe_layers", "moe_layers_enum"), _chosen),
    (("mlp_only_layers", "decoder_sparse_step"), _stepped),
    (("interleave_moe_layer_step",), _interleaved),
    (("expert_layer_period", "expert_layer_offset"), _offset),
    (("moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"), _between),
    (("first_k_dense_replace", "num_dense_layers", "moe_layer_freq"), _after_dense),
)


def _number(config: Config, key: str, default: int | None, minimum: int = 0) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise LayerPatternError(f"{key} is {value!r}; give a whole number of at least {minimum}")
    return value


def _list(config: Config, key: str, num_layers: int) -> list[Any]:
    """A list with an entry for each layer; what stands behind is for layers of another kind."""
    value = config[key]
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) < num_layers:
        raise LayerPatternError(
            f"{key} is {value!r}, and num_hidden_layers is {num_layers}; give an entry for each"
        )
    return list(value)
