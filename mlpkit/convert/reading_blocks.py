"""One FFN or MoE block out of a checkpoint, of families that are read whole and of others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from torch import Tensor, nn

from mlpkit.build import plain
from mlpkit.build.ffns import assemble_ffn
from mlpkit.compose import ConfigError, compose
from mlpkit.convert.families import Family, family_of
from mlpkit.convert.folders import CONFIG, ConversionError, WeightsError, read_config
from mlpkit.convert.layout import Rule
from mlpkit.convert.matching import SHOWN, check_shapes, choose, uncovered
from mlpkit.convert.settings import Settings
from mlpkit.convert.sources import Memory, Safetensors, Source
from mlpkit.convert.translating import ffn_overrides, settings_of, slot_of
from mlpkit.layers import DENSE, MAIN, LayerPatternError, slot_ffns

# Where a decoder's layers stand; in multimodal checkpoints below the language model.
PLACES = ("model.layers.", "language_model.model.layers.", "model.language_model.layers.")


def load_block(
    source: Mapping[str, Tensor] | str | Path,
    family: str,
    *,
    layer: int = 0,
    config: Any = None,
) -> tuple[dict[str, Any], nn.Module]:
    """An FFN of ours with the weights of one layer's FFN of a checkpoint.

    Args:
        source: A checkpoint's folder, or the state dict of the block itself, as
            ``model.model.layers[3].mlp.state_dict()`` of transformers gives it.
        family: Its ``model_type``, e.g. "deepseek_v3".
        layer: Which layer, from 0; of a state dict the one that it was.
        config: The model's configuration: of transformers, or a mapping. Needed with a state
            dict; of a folder None takes its ``config.json``.

    Returns:
        The FFN as ``ffn`` of a configuration, which ``mlpkit.build_ffn`` takes, and the module in
        the precision of the weights, in evaluation.

    Raises:
        ConversionError: The configuration is of another family, or has what mlpkit has not.
        WeightsError: Weights are damaged, missing, left over or of another shape.
    """
    values, where, tensors = _open(source, config)
    known = family_of(family, "load_block")
    said = family_of(values.get("model_type", family), where)
    # Both generations of MiniMind have one model_type.
    if said is not known and not said.name.startswith("minimind"):
        raise ConversionError(f"{where} is of the family {said.name!r}, not {known.name!r}")
    settings = settings_of(known, values, where=where)
    component = _component(known, settings, layer)
    hidden_size = settings.whole("hidden_size")
    module = assemble_ffn(component, hidden_size=hidden_size).eval()
    model = {f"ffn.{name}": tensor for name, tensor in module.state_dict().items()}
    shared = {"s": settings.get("n_shared_experts") or 1}
    prefix = _prefix(tensors, layer)
    moves = _moves(known, prefix, model, shared, tensors)
    found: dict[str, Tensor] = {}
    for move in moves:
        check_shapes(move, model, tensors)
        found |= move.read(tensors.get)
    _account(known, prefix, moves, tensors)
    matrix = next(iter(found.values()))
    module.to(matrix.dtype)
    module.load_state_dict({name.removeprefix("ffn."): t for name, t in found.items()})
    return component, module


def _open(
    source: Mapping[str, Tensor] | str | Path, config: Any
) -> tuple[dict[str, Any], str, Source]:
    values = config.to_dict() if hasattr(config, "to_dict") else config
    if isinstance(source, Mapping):
        if not isinstance(values, Mapping):
            raise ConversionError(
                "a state dict does not say how its experts are chosen; give config=, the model's "
                "configuration"
            )
        return _of_text(values), "the configuration", Memory(source)
    folder = Path(source).expanduser()
    if values is None:
        values = read_config(folder)
    return _of_text(values), str(folder / CONFIG), Safetensors(folder)


def _of_text(values: Mapping[str, Any]) -> dict[str, Any]:
    text = values.get("text_config")
    return dict(text if isinstance(text, Mapping) else values)


def _component(family: Family, settings: Settings, layer: int) -> dict[str, Any]:
    """The FFN of the layer, as a configuration says it."""
    try:
        slot = slot_of(family, settings, layer)
        layers = settings.whole("num_hidden_layers")
        composed: DictConfig = compose(
            [f"model.num_layers={layers}", *ffn_overrides(family, settings)]
        )
    except (ConfigError, LayerPatternError) as error:
        raise ConversionError(f"{settings.where}: {error}") from error
    found = slot_ffns(composed)
    component: dict[str, Any] = plain(found[MAIN if DENSE not in found else slot])
    return component


def _prefix(source: Source, layer: int) -> str:
    """What stands before a layer's own names; empty for the state dict of a block."""
    for place in PLACES:
        if any(name.startswith(f"{place}{layer}.") for name in source.entries):
            return f"{place}{layer}."
    if any(name.startswith(PLACES) for name in source.entries):
        raise WeightsError(f"{source.label} has no layer {layer}")
    return ""


def _moves(
    family: Family,
    prefix: str,
    model: Mapping[str, Tensor],
    counts: Mapping[str, int],
    source: Source,
) -> list[Rule]:
    rules = [rule.moved(prefix, "") if prefix else _bare(rule) for rule in family.rules]
    moves = choose(rules, model, counts, source)
    missing = uncovered(model, moves)
    if missing:
        wanted = [name for rule in rules if missing[0] in rule.ours for name in rule.theirs]
        raise WeightsError(
            f"{source.label} has no {' or '.join(wanted) or missing[0]}; it is no FFN of "
            f"{family.name} with this configuration"
        )
    return moves


def _bare(rule: Rule) -> Rule:
    """The rule without the block's own name: ``mlp.gate.weight`` is ``gate.weight`` there."""
    return replace(rule, theirs=tuple(name.partition(".")[2] for name in rule.theirs))


def _account(family: Family, prefix: str, moves: list[Rule], source: Source) -> None:
    """Refuses weights of the block that have no place: they would be missed in its output."""
    blocks = {rule.theirs[0].partition(".")[0] for rule in family.rules}
    inside_block = tuple(f"{prefix}{block}." for block in blocks) if prefix else ("",)
    taken = {name for move in moves for name in move.theirs}
    left = [n for n in source.entries if n.startswith(inside_block) and n not in taken]
    if left:
        raise WeightsError(
            f"{source.label}: an FFN of {family.name} with this configuration has no place for "
            f"{', '.join(left[:SHOWN])}"
        )
