"""Hydra overrides that begin with a word: groups, keys and values, without torch."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
from collections.abc import Iterator, Sequence

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.bash_completion import BashCompletion
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from omegaconf import DictConfig, ListConfig, OmegaConf

from mlpkit.cli.completion.paths import paths
from mlpkit.compose import GROUPS, NOTHING, conf_dir, install, quote_null
from mlpkit.plugins import registries
from mlpkit.schema import COMPONENTS

# a sweep over plain values: its first choice stands for all when keys are completed
SWEEP = re.compile(r"([+\w./]+=[\w.+-]*),[\w.,+-]*")
PATH_STARTS = (".", "/", "~")


def overrides(before: Sequence[str], word: str) -> list[str]:
    """Hydra overrides that begin with a word.

    Args:
        before: The overrides that stand before it.
        word: The override that is completed.
    """
    registries()  # a plugin may import torch itself; only Hydra's part below must not
    install()
    # neither the words of a sweep such as glob(*) nor spaces pass through Hydra's completion
    chosen = [quote_null(SWEEP.sub(r"\1", o)) for o in before if not re.search(r"[\s(]", o)]
    with initialize_config_dir(conf_dir(), version_base="1.3"), torch_kept_out():
        loader = GlobalHydra.instance().config_loader()
        complete = values if "=" in word else keys
        for context in (chosen, [o for o in chosen if top_key(o) == top_key(word)]):
            # an unfinished or wrong override elsewhere on the line must not silence this one
            with contextlib.suppress(Exception):
                if found := complete(loader, context, word):
                    return found
    return []


@contextlib.contextmanager
def torch_kept_out() -> Iterator[None]:
    """Makes ``import torch`` fail at once: it takes seconds, and a key is not worth them.

    An entry without a ``config`` dataclass has its schema in its constructor alone; behind
    ``activation=gelu`` the keys of the activation are therefore not completed, all others are.
    """
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]


def top_key(override: str) -> str:
    """The first part of an override's key: ``ffn`` in ``+ffn/router=topk`` and ``ffn.bias``."""
    return re.split(r"[./@=]", override.lstrip("+~"), maxsplit=1)[0]


def keys(loader: ConfigLoader, before: Sequence[str], word: str) -> list[str]:
    """Groups and keys, as Hydra's own completion finds them."""
    hydra = BashCompletion(loader)
    config = compose("config", overrides=list(before), return_hydra_config=True)
    groups, _ = hydra._query_config_groups(word, "config", list(before))
    found: list[str] = []
    for key in sorted({*groups, *hydra._get_matches(config, word)}):
        if top_key(key) == "hydra":
            # Hydra's own settings are many; they come when asked for
            found += [key] if word.lstrip("+~").startswith("h") else []
        elif key.lstrip("+") in GROUPS:  # with a group inside it Hydra leaves the end open
            found += [f"{key}=", f"{key}/"]
        elif key.endswith(".") and isinstance(OmegaConf.select(config, key[:-1]), ListConfig):
            found.append(f"{key[:-1]}=")  # a list is set as a whole
        elif not key.endswith(".name="):  # the name is chosen by the group
            found.append(key)
    return found


def values(loader: ConfigLoader, before: Sequence[str], word: str) -> list[str]:
    """Options of a group or values of a key; in a sweep ``key=a,b`` those of its last value."""
    key, _, value = word.partition("=")
    if value.startswith(PATH_STARTS):
        return [f"{key}={path}" for path in paths(value)]
    group = key.lstrip("+")
    options = loader.get_group_options(group, ObjectType.CONFIG, "config", list(before))
    if group == "activation":
        options = [*options, NOTHING]
    earlier, comma, _ = value.rpartition(",")
    options = options or values_of_key(group, before)
    return [f"{key}={earlier}{comma}{option}" for option in options]


def values_of_key(key: str, before: Sequence[str]) -> list[str]:
    """What a key can be set to: its choices, names of components, true and false; else as it is."""
    config = compose("config", overrides=list(before))
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    if not isinstance(node, DictConfig) or name not in node:
        return []
    if name in COMPONENTS:
        return [*registries().by_noun()[COMPONENTS[name]].names(), "null"]
    schema, value = OmegaConf.get_type(node), node[name]
    fields = dataclasses.fields(schema) if dataclasses.is_dataclass(schema) else ()
    choices = next((f.metadata.get("choices") for f in fields if f.name == name), None)
    if choices:
        return list(choices)
    if isinstance(value, bool):
        return ["true", "false"]
    return ["null" if value is None else str(value)]
