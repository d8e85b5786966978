"""Hydra glue: the registries as a config source, ``compose()``, and the check after compose."""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mlpkit.configs.run import LintConfig, ModelConfig, RunConfig, TrainingConfig
from mlpkit.lint import lint
from mlpkit.plugins import Registries, registries
from mlpkit.registry import Registry, UnknownNameError, suggestion
from mlpkit.schema import COMPONENTS, schema_of

# Config groups served from a registry; those below an FFN choose the parts inside it.
GROUPS = {
    "activation": "activation",
    "ffn": "ffn",
    "data": "data",
    "ffn/expert": "ffn",
    "ffn/shared": "ffn",
    "ffn/router": "router",
    "ffn/balance": "balance",
}
# The nodes whose schema is mlpkit's own, whatever is chosen.
TYPED: dict[str, type] = {
    "": RunConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
    "lint": LintConfig,
}
# Limits in a field's metadata; a NaN passes none of them.
BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (operator.ge, "at least"),
    "above": (operator.gt, "above"),
    "maximum": (operator.le, "at most"),
    "below": (operator.lt, "below"),
}
RUN_SCHEMA = "run_schema"
# Hydra takes no null for a group, and `activation=null,relu` is how one sweeps over "as it is":
# null becomes the name of an option that adds nothing.
NOTHING = "null"


class ConfigError(ValueError):
    """A configuration that cannot be run; the message names key, value and the way out."""

    exit_code = 2


def conf_dir() -> str:
    """The folder of the shipped YAML: inside an installed wheel, else beside the package.

    Raises:
        FileNotFoundError: Neither place has it.
    """
    for folder in (Path(str(files("mlpkit"))) / "conf", Path(__file__).parents[1] / "conf"):
        if (folder / "config.yaml").is_file():
            return str(folder)
    raise FileNotFoundError("mlpkit's conf/ folder is missing; reinstall mlpkit")


class RegistrySource(ConfigSource):
    """The config source ``mlpkit://``: lists entries without importing, types what is chosen."""

    @staticmethod
    def scheme() -> str:
        """The scheme of this source."""
        return "mlpkit"

    def load_config(self, config_path: str) -> ConfigResult:
        """The typed node of ``<group>/<name>``."""
        group, _, name = config_path.removesuffix(".yaml").rpartition("/")
        if not self.is_config(config_path):
            raise ConfigLoadError(f"config not found: {config_path}")
        nothing = name == NOTHING
        return ConfigResult(
            provider=self.provider,
            path=f"{self.scheme()}://",
            config=OmegaConf.create({}) if nothing else self._node(group, name),
            header={"package": "_global_" if nothing else None},
        )

    def available(self) -> bool:
        """Always: the registries are part of mlpkit."""
        return True

    def is_group(self, config_path: str) -> bool:
        """Whether a path is a group that the registries fill, or leads to one."""
        path = config_path.strip("/")
        return path in GROUPS or any(group.startswith(f"{path}/") for group in GROUPS) or not path

    def is_config(self, config_path: str) -> bool:
        """Whether a path is ``<group>/<registered name>``."""
        group, _, name = config_path.strip("/").removesuffix(".yaml").rpartition("/")
        if not group:
            return name == RUN_SCHEMA
        return group in GROUPS and (name == NOTHING or name in self._registry(group))

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """The groups and entries below a path, sorted."""
        path = config_path.strip("/")
        found: set[str] = set()
        if results_filter in (None, ObjectType.GROUP):
            prefix = f"{path}/" if path else ""
            below = (g.removeprefix(prefix) for g in GROUPS if g.startswith(prefix))
            found.update(group.partition("/")[0] for group in below)
        if results_filter in (None, ObjectType.CONFIG) and path in GROUPS:
            found.update(self._registry(path).names())
        return sorted(found)

    def _registry(self, group: str) -> Registry[Any]:
        return registries().by_noun()[GROUPS[group]]

    def _node(self, group: str, name: str) -> Any:
        """The entry's typed node; where it holds parts that have groups, with a defaults list."""
        if name == RUN_SCHEMA:
            return OmegaConf.structured(RunConfig)
        schema = schema_of(GROUPS[group], self._registry(group).get(name))
        node = OmegaConf.structured(schema)
        if GROUPS[group] == "balance":  # term → coefficient, so that several can be chosen
            return OmegaConf.create({name: node.get("coefficient", {})})
        parts = [f.name for f in dataclasses.fields(schema) if f"{group}/{f.name}" in GROUPS]
        if not parts:
            return node
        # the entry's own values first: a part's node is merged into its slot
        defaults = ["_self_", *({part: chosen(node[part])} for part in parts)]
        fields: list[Any] = [
            ("defaults", list, dataclasses.field(default_factory=lambda: defaults))
        ]
        if "balance" in parts:  # merged into a mapping that had terms, a choice would add to them
            fields.append(("balance", Any, dataclasses.field(default_factory=dict)))
        typed = dataclasses.make_dataclass(schema.__name__, fields, bases=(schema,), kw_only=True)
        return OmegaConf.structured(typed)


def chosen(part: Any) -> Any:
    """What a part's default is in its group: a name, several, or None."""
    if not isinstance(part, DictConfig):
        return part
    return part.name if "name" in part else [str(name) for name in part]


class RegistrySearchPath(SearchPathPlugin):
    """Puts ``mlpkit://`` behind the YAML folders, so that a preset may stand before an entry."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Appends the source."""
        search_path.append("mlpkit", "mlpkit://")


def install() -> None:
    """Makes the registries known to Hydra in this process; other Hydra programs see nothing."""
    plugins = Plugins.instance()
    for plugin in (RegistrySource, RegistrySearchPath):
        if plugin not in plugins.discover(plugin):
            plugins.register(plugin)


def quote_null(override: str) -> str:
    """The override with null as an option's name where its key is a group."""
    key, equals, value = override.partition("=")
    if key not in GROUPS:
        return override
    return key + equals + re.sub(r"(?<![\w'\"])null(?![\w'\"])", f"'{NOTHING}'", value)


@contextmanager
def own_hydra() -> Iterator[None]:
    """Hydra with mlpkit's configuration; a Hydra program that calls it gets its own back."""
    instance = GlobalHydra.instance()
    before, instance.hydra = instance.hydra, None
    try:
        with initialize_config_dir(conf_dir(), version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = before


def compose(overrides: Sequence[str] = ()) -> DictConfig:
    """Composes and checks the configuration of a run.

    Args:
        overrides: Hydra overrides, e.g. ``["ffn=gated", "model.hidden_size=256"]``.

    Raises:
        ConfigError: An override names no key or group, a value has the wrong type or range, or
            the lint finds a trap that is not allowed.
    """
    install()
    try:
        with own_hydra():
            config = hydra_compose("config", overrides=[quote_null(o) for o in overrides])
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error, overrides)) from error
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:  # Hydra's, for a group that is given a number
        raise ConfigError(f"{' '.join(overrides)}: {first_line(error)}") from error
    check(config)
    return config


def check(config: DictConfig) -> None:
    """Checks a composed configuration: components, ranges, then the lint.

    Raises:
        ConfigError: What is wrong, with its key.
    """
    try:
        OmegaConf.to_container(config, resolve=True)  # an interpolation that leads nowhere
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {first_line(error)}") from error
    _check(config, registries())


def _check(config: DictConfig, regs: Registries) -> None:
    check_component("ffn", config.ffn, "ffn", regs)
    check_component("data", config.data, "data", regs)
    if config.activation is not None:
        check_component("activation", config.activation, "activation", regs)
    for key, schema in TYPED.items():
        check_values(key, OmegaConf.select(config, key) if key else config, schema)
    errors = [finding for finding in lint(config, regs) if finding.is_error]
    if errors:
        raise ConfigError("\n".join(str(finding) for finding in errors))


def check_component(key: str, node: Any, noun: str, regs: Registries) -> None:
    """Checks a component's node against its entry's schema, and the components inside it.

    Args:
        key: The node's dotted key, for messages.
        node: A name, or a mapping with a ``name``.
        noun: The extension point whose registry holds it.
        regs: The registries.

    Raises:
        ConfigError: An unknown name or key, a changed name, a value of the wrong type.
    """
    registry = regs.by_noun()[noun]
    name = node if isinstance(node, str) else _name(key, node, registry)
    try:
        spec = registry.get(name)
    except UnknownNameError as error:
        raise ConfigError(f"{key}: {error}") from error
    if isinstance(node, str):
        return
    schema = schema_of(noun, spec)
    known = [field.name for field in dataclasses.fields(schema)]
    for option in node:
        if option not in known:
            raise ConfigError(_unknown_key(f"{key}.{option}", known, f"{noun} {name!r}"))
        if OmegaConf.is_missing(node, option):
            raise ConfigError(f"{key}.{option} has no value; set it: {key}.{option}=VALUE")
    typed = OmegaConf.get_type(node)
    if typed not in (None, dict) and not issubclass(typed, schema):
        chosen = OmegaConf.structured(typed).name
        raise ConfigError(
            f"{key}.name is {name!r}, but the options there are those of {chosen!r}; "
            f"write {key.replace('.', '/')}={name}"
        )
    try:
        # without the parts, which may be a name, a mapping or a list, and are checked below
        own = OmegaConf.masked_copy(node, [o for o in known if o in node and o not in COMPONENTS])
        full = OmegaConf.merge(OmegaConf.structured(schema), own)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{key}: {first_line(error)}") from error
    assert isinstance(full, DictConfig)
    check_limits(key, full, schema)
    for option in known:
        if option in COMPONENTS and node.get(option) is not None:
            check_component(f"{key}.{option}", node[option], COMPONENTS[option], regs)
    if "experts" in known and node.get("experts") is not None:
        check_expert_types(f"{key}.experts", node.experts, regs)
    if noun == "router" and node.get("score", "softmax") != "softmax":
        check_component(f"{key}.score", node.score, "activation", regs)
    if "balance" in known and node.get("balance") is not None:
        check_balance(f"{key}.balance", node.balance, regs)


def check_expert_types(key: str, node: Any, regs: Registries) -> None:
    """Checks a list of expert types.

    Raises:
        ConfigError: It is no list of mappings, or one of them is no FFN.
    """
    if not isinstance(node, ListConfig) or not all(isinstance(e, DictConfig) for e in node):
        raise ConfigError(
            f"{key} is {node!r}; give a list such as [{{name: swiglu, num_experts: 6}}, "
            "{name: zero, num_experts: 2}], or null"
        )
    for index, entry in enumerate(node):
        own = {str(k): v for k, v in entry.items() if k != "num_experts"}
        check_component(f"{key}.{index}", OmegaConf.create(own), "ffn", regs)


def check_balance(key: str, node: Any, regs: Registries) -> None:
    """Checks a mapping of balance names to coefficients or options.

    Raises:
        ConfigError: It is no mapping, or has an unknown name or option.
    """
    if not isinstance(node, DictConfig):
        raise ConfigError(f"{key} is {node!r}; give a mapping such as {{load: 0.01}}, or null")
    for name, value in node.items():
        options = dict(value) if isinstance(value, DictConfig) else {"coefficient": value}
        full = OmegaConf.create({**options, "name": str(name)})
        check_component(f"{key}.{name!s}", full, "balance", regs)


def check_values(key: str, node: DictConfig, schema: type) -> None:
    """Checks the keys of a node, and its plain values.

    Raises:
        ConfigError: An unknown key, or a value that ``check_limits`` refuses.
    """
    if not isinstance(node, DictConfig):  # an interpolation, or deleted
        raise ConfigError(f"{key} is {node!r}; drop {key}=, and change its keys one by one")
    known = [field.name for field in dataclasses.fields(schema)]
    for name in node:
        if name not in known:
            full = f"{key}.{name!s}" if key else str(name)
            raise ConfigError(_unknown_key(full, known, key or "the configuration"))
    check_limits(key, node, schema)


def check_limits(key: str, node: DictConfig, schema: type) -> None:
    """Checks the plain values of a node against the limits in its schema's fields.

    Raises:
        ConfigError: No value, one outside its range, or none of its choices.
    """
    for field in dataclasses.fields(schema):
        full = f"{key}.{field.name}" if key else field.name
        if field.name not in node or OmegaConf.is_missing(node, field.name):
            raise ConfigError(f"{full} has no value; set it: {full}=VALUE")
        value, limits = node.get(field.name), field.metadata
        if value is None:
            continue
        if isinstance(value, float) and math.isinf(value):
            raise ConfigError(f"{full} is {value!r}; give a finite number")
        for bound, (holds, words) in BOUNDS.items():
            if bound in limits and not holds(value, limits[bound]):
                raise ConfigError(
                    f"{full} is {value!r}; it must be {words} {limits[bound]} ({limits['doc']})"
                )
        if "choices" in limits and value not in limits["choices"]:
            hint = suggestion(str(value), limits["choices"])
            raise ConfigError(
                f"{full} is {value!r}{hint} (choices: {', '.join(limits['choices'])})"
            )


def explain(error: Exception, overrides: Sequence[str]) -> str:
    """One message for what Hydra or OmegaConf said: the key, what was found, the nearest key."""
    cause = error.__cause__
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        options = sorted(error.options or [])
        hint = suggestion(name, options)
        return f"unknown {group} {name!r}{hint} (there are: {', '.join(options)})"
    if isinstance(error, ConfigCompositionException) and "Could not override" in str(error):
        return _explain_override(error, overrides)
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        return f"{cause.full_key}: {first_line(cause)}"
    return str(error).strip()


def first_line(error: Exception) -> str:
    """The first line of an error's message: OmegaConf appends its internals below."""
    return str(error).strip().partition("\n")[0]


def _explain_override(error: Exception, overrides: Sequence[str]) -> str:
    """The message for an override whose key does not exist, with the nearest one that does."""
    key = str(error).split("'")[1].partition("@")[0]
    rest = [o for o in overrides if o.lstrip("+~").partition("=")[0].replace("/", ".") != key]
    parent = key.replace("/", ".").rpartition(".")[0]
    if key in GROUPS and "/" in key:
        owner, _, part = key.rpartition("/")
        return f"the chosen {owner} has no {part} to choose; choose another {owner}, or drop {key}="
    if key in GROUPS:
        return f"{key} takes a name; write {key}=NAME, and its options as {key}.OPTION=VALUE"
    try:
        with own_hydra():
            config: Any = hydra_compose("config", overrides=rest)
        node = OmegaConf.select(config, parent) if parent else config
        known: Iterable[Any] = node if isinstance(node, DictConfig) else []
        return _unknown_key(key, [str(k) for k in known], parent or "the configuration")
    except (HydraException, OmegaConfBaseException):
        return first_line(error)


def _unknown_key(key: str, known: Sequence[str], owner: str) -> str:
    parent, _, name = key.rpartition(".")
    hint = suggestion(name, known)
    if hint and parent:
        hint = hint.replace("did you mean '", f"did you mean '{parent}.")
    return f"unknown key {key!r}{hint} ({owner} has: {', '.join(known) or 'no keys'})"


def _name(key: str, node: Any, registry: Registry[Any]) -> str:
    """The name in a component's mapping."""
    if isinstance(node, ListConfig) or not isinstance(node, DictConfig):
        found = "nothing" if node is None else repr(node)
        raise ConfigError(
            f"{key} is {found}; give the name of one of: {', '.join(registry.names())}"
        )
    name = node.get("name")
    if not isinstance(name, str):
        raise ConfigError(f"{key}.name is {name!r}; give one of: {', '.join(registry.names())}")
    return name
