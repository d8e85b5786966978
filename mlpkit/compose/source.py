"""The registries as Hydra's config source ``mlpkit://``, and mlpkit's own Hydra."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from mlpkit.configs.run import RunConfig
from mlpkit.layers import KEY as LAYERS
from mlpkit.plugins import presets, registries
from mlpkit.registry import Registry
from mlpkit.schema import schema_of

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
RUN_SCHEMA = "run_schema"
# Hydra takes no null for a group, and `activation=null,relu` is how one sweeps over "as it is":
# null becomes the name of an option that adds nothing.
NOTHING = "null"
QUOTED_KEY = re.compile(r"(['\"])([^'\"]*)\1(\s*:)")


def conf_dir() -> str:
    """The folder of the shipped YAML: inside an installed wheel, else beside the package.

    Raises:
        FileNotFoundError: Neither place has it.
    """
    for folder in (Path(str(files("mlpkit"))) / "conf", Path(__file__).parents[2] / "conf"):
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
        """Appends the source, and behind it the presets of plugins: they shadow nothing."""
        search_path.append("mlpkit", "mlpkit://")
        for provider, folder in presets():
            search_path.append(provider, f"file://{folder}")


def install() -> None:
    """Makes the registries known to Hydra in this process; other Hydra programs see nothing."""
    plugins = Plugins.instance()
    for plugin in (RegistrySource, RegistrySearchPath):
        if plugin not in plugins.discover(plugin):
            plugins.register(plugin)


def quote_null(override: str) -> str:
    """The override with null as an option's name where its key is a group.

    In a pattern of layers the quotes around keys go: YAML wants them, Hydra refuses them.
    """
    key, equals, value = override.partition("=")
    if key.lstrip("+") == LAYERS:
        return key + equals + QUOTED_KEY.sub(r"\2\3", value)
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
