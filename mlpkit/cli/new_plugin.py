"""``mlpkit new-plugin``: writes an installable distribution to start from."""

from __future__ import annotations

import argparse
import re
from importlib.resources import files
from pathlib import Path

from mlpkit.plugins import registries

NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*\Z")
DEMO = "mlpkit-demo"


class NewPluginError(ValueError):
    """A plugin that cannot be written: a bad name, or one that is taken."""

    exit_code = 2


def configure(parser: argparse.ArgumentParser, verb: str) -> None:
    """Adds the options of the verb."""
    parser.add_argument("name", metavar="NAME", help="of the plugin and its FFN, e.g. my_ffn")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the folder and says what to do with it."""
    word = identifier(options.name)
    folder = write(word, Path.cwd())
    print(f"wrote ./{folder.name}: the activation {word}_act and the FFN {word}\n")
    print(f"  pip install -e ./{folder.name}")
    print(f"  mlpkit show ffn {word}")
    print(f"  mlpkit train -m ffn=swiglu,{word} seed=0,1,2 match=params training=quick")
    print(f"  mlpkit check {folder.name}")
    return 0


def identifier(name: str) -> str:
    """The word that names the plugin's entries, from what a user calls it.

    Raises:
        NewPluginError: It is no such word, or an entry has it.
    """
    short = name.removeprefix("mlpkit-").removeprefix("mlpkit_")
    if not NAME.match(short):
        raise NewPluginError(
            f"{name!r} is no name for a plugin; use lower case letters and digits, with _ or - "
            "between them, e.g. my_ffn"
        )
    word = short.replace("-", "_")
    for registry, entry in ((registries().ffn, word), (registries().activation, f"{word}_act")):
        if entry in registry:
            raise NewPluginError(
                f"the {registry.noun} {entry!r} is there already, from "
                f"{registry.provider(entry)}; choose another name"
            )
    return word


def write(word: str, parent: Path) -> Path:
    """Copies the template under another name.

    Args:
        word: The name of its entries.
        parent: The folder to write into.

    Returns:
        The plugin's folder.

    Raises:
        NewPluginError: The folder exists.
    """
    target = parent / renamed(DEMO, word)
    if target.exists():
        raise NewPluginError(f"{target} exists; choose another name, or delete it")
    source = template_folder()
    for path in sorted(source.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            copy = target / renamed(str(path.relative_to(source)), word)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(renamed(path.read_text(encoding="utf-8"), word), encoding="utf-8")
    return target


def renamed(text: str, word: str) -> str:
    """The text with the plugin's names in the place of the template's."""
    text = text.replace(DEMO, f"mlpkit-{word.replace('_', '-')}")
    text = text.replace("Demo", "".join(part.capitalize() for part in word.split("_")))
    return text.replace("demo", word)


def template_folder() -> Path:
    """Where the template is: inside an installed wheel, else beside the package.

    Raises:
        FileNotFoundError: Neither place has it.
    """
    inside = Path(str(files("mlpkit"))) / "template"
    for folder in (inside, Path(__file__).parents[2] / "plugins" / "template"):
        if (folder / DEMO / "pyproject.toml").is_file():
            return folder / DEMO
    raise FileNotFoundError("mlpkit's plugin template is missing; reinstall mlpkit")
