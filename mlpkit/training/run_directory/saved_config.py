"""config.yaml: written without secrets of the environment, read without trust."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from mlpkit.compose import ConfigError, check, first_line
from mlpkit.compose.untrusted import LARGEST_CONFIG, require_plain_file, require_plain_yaml
from mlpkit.configs.run import RunConfig
from mlpkit.training.run_directory.files import CONFIG, RunDirectoryError, require_own_files

NAMED = re.compile(r"\boc\.env:([A-Za-z_][A-Za-z0-9_]*)")
SHORTEST = 4  # letters of what is hidden: "1" is no secret, and stands in every record
FROM_ENVIRONMENT = re.compile(r"\$\{oc\.env:[A-Za-z_][A-Za-z0-9_]*(,[^${}]*)?\}")


def config_text(config: DictConfig) -> str:
    """A configuration as YAML, resolved, but with what comes from the environment as written.

    So ``data.path=${oc.env:CORPUS}/text`` stays that in the file, and a value of the environment
    never gets into a run directory or a report.

    Args:
        config: A composed configuration.

    Raises:
        ConfigError: A value takes from the environment in a way that cannot be kept as written.
    """
    return OmegaConf.to_yaml(OmegaConf.create(_kept(config)))


def plain_config(config: DictConfig) -> dict[str, Any]:
    """The values of ``config_text``, to be compared."""
    kept: dict[str, Any] = _kept(config)
    return kept


def hide_environment(content: Any, config: DictConfig) -> Any:
    """Plain values with what a configuration takes from the environment put back as written.

    A message names the path that was not found, and a record keeps the message: without this the
    value of ``${oc.env:NAME}`` would be in it.

    Args:
        content: A text, or lists and mappings with texts in them.
        config: The configuration, not resolved.
    """
    return hiding(config)(content)


def hiding(config: DictConfig) -> Callable[[Any], Any]:
    """``hide_environment`` for many texts, such as a log's: the configuration is read once.

    Args:
        config: The configuration, not resolved.
    """
    names = set(NAMED.findall(OmegaConf.to_yaml(config)))
    values = {value: name for name in names if len(value := os.environ.get(name, "")) >= SHORTEST}
    longest_first = dict(sorted(values.items(), key=lambda item: -len(item[0])))
    return partial(_replaced, values=longest_first)


def _replaced(content: Any, values: Mapping[str, str]) -> Any:
    if isinstance(content, str):
        for value, name in values.items():
            content = content.replace(value, f"${{oc.env:{name}}}")
    elif isinstance(content, Mapping):
        return {key: _replaced(value, values) for key, value in content.items()}
    elif isinstance(content, list | tuple):
        return [_replaced(value, values) for value in content]
    return content


def _kept(node: DictConfig | ListConfig, path: str = "") -> Any:
    written: Any = OmegaConf.to_container(node, resolve=False)
    keys = range(len(written)) if isinstance(written, list) else list(written)
    kept: dict[Any, Any] = {}
    for key in keys:
        name = f"{path}.{key}" if path else str(key)
        if OmegaConf.is_interpolation(node, key) and _reads_environment(node, key):
            kept[key] = _require_kept(name, str(written[key]))
        else:
            value = node[key]
            kept[key] = _kept(value, name) if OmegaConf.is_config(value) else value
    return list(kept.values()) if isinstance(written, list) else kept


def _reads_environment(node: Any, key: Any) -> bool:
    """Whether resolving a value asks for a variable of the environment, however indirectly."""
    asked: list[str] = []

    def watched(name: str, *default: Any) -> Any:
        asked.append(name)
        return os.environ.get(name, *(str(d) for d in default)) or ""

    # OmegaConf has no other way to see what an interpolation depends on.
    OmegaConf.register_new_resolver("oc.env", watched, replace=True)
    try:
        value = node[key]
        if OmegaConf.is_config(value):
            OmegaConf.to_container(value, resolve=True)
    except OmegaConfBaseException:
        pass  # reading it for good gives the message
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
    return bool(asked)


def _require_kept(name: str, raw: str) -> str:
    if "${" in FROM_ENVIRONMENT.sub("", raw):
        raise ConfigError(
            f"{name}={raw} reads the environment through another value, which cannot be saved "
            "without the value itself; write ${oc.env:NAME} there, with nothing else in ${}"
        )
    return raw


def load_config(path: Path) -> DictConfig:
    """The checked configuration of a run directory.

    Raises:
        RunDirectoryError: There is none, or it is damaged.
        ConfigError: It needs a plugin that is not installed, or holds foreign keys.
    """
    loaded = read_config(path)
    try:
        config = OmegaConf.merge(OmegaConf.structured(RunConfig), loaded)
        assert isinstance(config, DictConfig)
        check(config)
    except ConfigError as error:
        raise ConfigError(f"{path / CONFIG}: {error}") from error
    except (OmegaConfBaseException, ValueError) as error:
        raise RunDirectoryError(f"{path / CONFIG} is damaged: {first_line(error)}") from error
    return config


def read_config(path: Path) -> DictConfig:
    """The configuration of a run directory as it is written there, unchecked.

    Raises:
        RunDirectoryError: There is none, or it is damaged.
    """
    file = path / CONFIG
    try:
        require_own_files(path)
        require_plain_file(file, largest=LARGEST_CONFIG)
        text = file.read_text()
        require_plain_yaml(text)
        loaded = OmegaConf.create(text)
        _require_resolved(OmegaConf.to_container(loaded, resolve=False))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunDirectoryError(f"{path} is not a run directory: it has no {CONFIG}") from error
    except RunDirectoryError:
        raise
    except (OmegaConfBaseException, yaml.YAMLError, ValueError, OSError, RecursionError) as error:
        raise RunDirectoryError(f"{file} is damaged: {first_line(error)}") from error
    if not isinstance(loaded, DictConfig):
        raise RunDirectoryError(f"{file} is damaged: it holds a list")
    return loaded


def _require_resolved(content: Any) -> None:
    """Refuses references to other values: ten to each of ten are ten thousand million."""
    for text in _strings(content):
        if "${" in FROM_ENVIRONMENT.sub("", text):
            raise ValueError(f"it has {text[:60]!r}, and only ${{oc.env:NAME}} may refer in it")


def _strings(content: Any) -> Iterator[str]:
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _strings(key)
            yield from _strings(value)
    elif isinstance(content, list):
        for value in content:
            yield from _strings(value)
    elif isinstance(content, str):
        yield content
