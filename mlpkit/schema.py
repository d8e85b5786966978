"""The schema of a registry entry: its config dataclass, else read from the target's signature."""

from __future__ import annotations

import dataclasses
import inspect
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import UnsupportedValueType

from mlpkit.configs.data import DataConfig
from mlpkit.specs import Spec, resolve

# Arguments with these names are components: a name or mapping in config, a built part in Python.
COMPONENTS = {
    "activation": "activation",
    "router": "router",
    "backend": "backend",
    "expert": "ffn",
    "shared": "ffn",
}
# What the host gives; these are no options.
HOST_GIVEN = {
    "activation": (),
    "ffn": ("hidden_size",),
    "router": ("hidden_size", "num_experts", "num_experts_per_tok"),
    "balance": (),
    "backend": ("template",),
    "data": (),
}
PLAIN = (int, float, str, bool)


class SchemaError(RuntimeError):
    """A plugin's entry whose options cannot be read."""

    exit_code = 3


def schema_of(noun: str, spec: Spec) -> type:
    """The dataclass of an entry's options, with ``name`` first.

    Args:
        noun: The entry's extension point.
        spec: The entry.

    Raises:
        SchemaError: The entry's module cannot be imported, or its signature cannot be read.
    """
    try:
        return spec.config or _from_signature(noun, spec)
    except Exception as error:  # a stranger's module is imported here
        raise SchemaError(
            f"the options of {noun} {spec.name!r} cannot be read from {spec.target}: "
            f"{type(error).__name__}: {error}"
        ) from error


def holds_experts(spec: Spec) -> bool:
    """Whether an FFN's constructor takes experts: it is built from a router and other FFNs."""
    return "experts" in inspect.signature(resolve(spec.target)).parameters


@cache
def _from_signature(noun: str, spec: Spec) -> type:
    target = resolve(spec.target)
    hints = _hints(target)
    fields: list[Any] = [("name", str, dataclasses.field(default=spec.name))]
    for name, parameter in option_parameters(noun, target).items():
        if name in COMPONENTS:  # null: the constructor's own, whatever it is
            fields.append((name, Any, dataclasses.field(default=None)))
        elif _writable(parameter.default):
            kind = _plain(hints.get(name, Any))
            optional = parameter.default is None and kind is not Any
            fields.append((name, kind | None if optional else kind, _default(parameter)))
    bases = (DataConfig,) if noun == "data" else ()
    return dataclasses.make_dataclass(f"{spec.name}_config", fields, bases=bases, kw_only=True)


def option_parameters(noun: str, target: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a target that are options: neither host-given nor the tensor."""
    parameters = list(inspect.signature(target).parameters.values())
    if noun == "activation" and not inspect.isclass(target):
        parameters = parameters[1:]  # a plain function's first argument is the tensor
    skipped = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        p.name: p for p in parameters if p.name not in HOST_GIVEN[noun] and p.kind not in skipped
    }


def _hints(target: Any) -> dict[str, Any]:
    try:
        return get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except Exception:  # a hint that exists only for the type checker
        return {}


def _plain(hint: Any) -> Any:
    """The hint where OmegaConf can check it (plain values, optional or united), else Any."""
    if hint in PLAIN:
        return hint
    if get_origin(hint) in (Union, UnionType):
        members = get_args(hint)
        if all(member in (*PLAIN, NoneType) for member in members):
            return hint
    return Any


def _writable(default: Any) -> bool:
    """Whether YAML can hold a default; an option with another keeps it and is set in Python."""
    try:
        OmegaConf.create([MISSING if default is inspect.Parameter.empty else default])
    except UnsupportedValueType:
        return False
    return True


def _default(parameter: inspect.Parameter) -> Any:
    default = parameter.default
    if default is inspect.Parameter.empty:
        return dataclasses.field(default=MISSING)
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: default.copy())
    return dataclasses.field(default=default)
