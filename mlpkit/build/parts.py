"""What all building has in common: components, constructors, and seeded initial values."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from omegaconf import OmegaConf

from mlpkit.compose import first_line
from mlpkit.registry import suggestion
from mlpkit.schema import option_parameters
from mlpkit.specs import Spec, resolve

Component = str | Mapping[str, Any]


class BuildError(ValueError):
    """Options that a part's constructor refuses; the message names the part."""

    exit_code = 2


def split(component: Any, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A component's name and its options.

    Args:
        component: A name, or a mapping with ``name`` and options.
        options: Further options, which win.

    Raises:
        BuildError: It is neither.
    """
    if isinstance(component, str):
        return component, dict(options)
    if not isinstance(component, Mapping) or "name" not in component:
        raise BuildError(f"a component is a name or a mapping with a name; found {component!r}")
    rest = {key: value for key, value in component.items() if key != "name"}
    return component["name"], {**rest, **options}


def construct(noun: str, spec: Spec, arguments: dict[str, Any]) -> Any:
    """Calls a spec's target; what it refuses is told with its name.

    Args:
        noun: The entry's extension point.
        spec: The entry.
        arguments: What its constructor gets.

    Raises:
        BuildError: An argument it does not have, or a value it refuses.
    """
    target = resolve(spec.target)
    parameters = inspect.signature(target).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [] if open_ended else [name for name in arguments if name not in parameters]
    refuse_unknown(noun, spec.name, unknown, list(option_parameters(noun, target)))
    try:
        return target(**arguments)
    except (TypeError, ValueError) as error:
        raise BuildError(f"{noun} {spec.name!r}: {first_line(error)}") from error


def require_sizes(**sizes: Any) -> None:
    """Refuses what is no whole number of at least 1, before torch does in its own words.

    Raises:
        BuildError: One of them is none.
    """
    for name, value in sizes.items():
        if type(value) is not int or value < 1:
            raise BuildError(f"{name} is {value!r}; give a whole number of at least 1")


def refuse_unknown(noun: str, name: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Refuses an option that an entry does not have, with the nearest one that it has.

    Raises:
        BuildError: There is one.
    """
    for option in given:
        if option not in known:
            raise BuildError(
                f"{noun} {name!r} has no option {option!r}{suggestion(option, known)} "
                f"(options: {', '.join(known) or 'none'})"
            )


@contextmanager
def seeded(seed: int, part: str) -> Iterator[None]:
    """Initial values drawn inside come from (seed, part); torch's global generator is as before."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would seed the GPUs' generators too, which are not put back
        torch.default_generator.manual_seed(derived_seed(seed, part))
        yield


def derived_seed(seed: int, purpose: str) -> int:
    """A seed for one purpose of a run, e.g. a part or a step, independent of the others."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def plain(node: Any) -> Any:
    """Plain Python values of a configuration node: modules keep no configuration objects."""
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
