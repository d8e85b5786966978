"""``mlpkit plot``: activations and FFNs as pictures."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

OUTSIDE = re.compile(r",(?![^\[{]*[\]}])")  # a comma that is not within [] or {}


class ComponentError(ValueError):
    """A name with options that cannot be read."""

    exit_code = 2


def configure(parser: argparse.ArgumentParser, verb: str) -> None:
    """Adds the options of the verb."""
    parser.add_argument("kind", metavar="KIND", choices=("activation", "ffn"), help="%(choices)s")
    parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="a registered name or a preset, with options if you like: "
        "leaky_relu:negative_slope=0.2",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="the picture; .svg, .png or .pdf (default KIND-NAMES.svg)",
    )
    parser.add_argument("--dark", action="store_true", help="on a dark background")
    parser.add_argument("--lang", choices=("en", "zh"), default="en", help="English or Chinese")
    parser.add_argument(
        "--range",
        nargs=2,
        type=float,
        metavar=("LOW", "HIGH"),
        help="the range of x of activations (default -6 6)",
    )
    parser.add_argument(
        "--hidden-size", type=int, metavar="H", help="the width of FFNs (default 512)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Draws and writes the picture."""
    from mlpkit import figures  # imports torch: the parser does without

    out = options.out or default_path(options.kind, options.names)
    figures.check_picture(out)
    components = [component(name) for name in options.names]
    style: dict[str, Any] = {"dark": options.dark, "lang": options.lang}
    unused = options.hidden_size if options.kind == "activation" else options.range
    if unused is not None:
        flag = "--hidden-size" if options.kind == "activation" else "--range"
        raise ComponentError(f"{flag} has no meaning for plot {options.kind}; leave it out")
    if options.kind == "activation":
        span = tuple(options.range or (-6.0, 6.0))
        figure = figures.plot_activation(*components, span=(span[0], span[1]), **style)
    else:
        size = 512 if options.hidden_size is None else options.hidden_size
        figure = figures.plot_ffn(*components, hidden_size=size, **style)
    figures.save_figure(figure, out)
    print(f"wrote {out}")
    return 0


def component(text: str) -> str | dict[str, Any]:
    """A name, or the mapping of ``NAME:KEY=VALUE,KEY=VALUE``; a key may be dotted.

    Args:
        text: As it stands on the command line.

    Raises:
        ComponentError: What follows the colon is no list of options.
    """
    name, colon, rest = text.partition(":")
    if not colon:
        return name
    from omegaconf import OmegaConf  # listing verbs do without it

    pairs = OUTSIDE.split(rest)
    if not all(re.fullmatch(r"[A-Za-z_][\w.]*=.+", pair) for pair in pairs):
        raise ComponentError(
            f"{text!r} is not NAME:KEY=VALUE,KEY=VALUE, e.g. leaky_relu:negative_slope=0.2"
        )
    options = OmegaConf.to_container(OmegaConf.from_dotlist(pairs))
    assert isinstance(options, dict)
    return {"name": name, **{str(key): value for key, value in options.items()}}


def default_path(kind: str, names: list[str]) -> Path:
    """Where the picture goes when nobody says; options are left out of its name."""
    joined = "-".join(name.partition(":")[0] for name in names)
    if len(joined) > 100:  # a file's name has at most 255 characters
        joined = f"{len(names)}-names"
    return Path(f"{kind}-{joined}.svg")
