"""What stands below the diagram of an FFN: what it is, and its parameters."""

from __future__ import annotations

from torch import nn

from mlpkit.build import Component, ffn_label
from mlpkit.build.parts import split
from mlpkit.build.presets import with_preset
from mlpkit.describe import count_parameters
from mlpkit.experts import Experts
from mlpkit.figures.labels import Words
from mlpkit.moe import MoE


def caption(name: Component, module: nn.Module, text: Words) -> tuple[str, ...]:
    """What an FFN is, its parameters, and those that a token uses.

    Args:
        name: The name or mapping that it was built from; a preset's too.
        module: The built FFN.
        text: The language.
    """
    total = count_parameters([module])
    lines = [_label(name), text.parameters.format(count=f"{total:,}")]
    active = active_parameters(module)
    if active is not None:
        lines.append(text.active.format(count=f"{active:,}"))
    return tuple(lines)


def _label(component: Component) -> str:
    """What an FFN is, and before it the name of the preset that says so."""
    given, options = split(component, {})
    name, options = with_preset("ffn", given, options)
    label = ffn_label({"name": name, **options})
    return label if name == given else f"{given}: {label}"


def active_parameters(module: nn.Module) -> int | None:
    """The parameters that one token uses: all but those of the experts it does not pass.

    Args:
        module: An FFN.

    Returns:
        The number; None where there are no experts, or where it depends on the chosen ones.
    """
    if not isinstance(module, MoE) or not isinstance(module.experts, Experts):
        return None
    experts = count_parameters([module.experts])
    used = experts // module.router.num_experts * module.router.num_experts_per_tok
    return count_parameters([module]) - experts + used
