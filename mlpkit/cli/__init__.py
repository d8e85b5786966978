"""The program ``mlpkit``: verbs, exit codes, one message for what goes wrong."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from mlpkit import __version__

# verb → (module, one line); the modules are imported when their verb is used
VERBS = {
    "train": ("mlpkit.cli.train", "train a model, or with -m a sweep of them"),
    "generate": ("mlpkit.cli.generate", "continue a text with a trained run"),
    "list": ("mlpkit.cli.catalogue", "what is registered: activations, FFNs, data …"),
    "show": ("mlpkit.cli.catalogue", "one entry: options, formula, paper, provider"),
    "describe": ("mlpkit.cli.describe", "a model in numbers: parts, parameters, FLOPs"),
    "upcycle": ("mlpkit.cli.upcycle", "a dense run becomes a mixture of its own FFN"),
    "import": ("mlpkit.cli.import_", "a Hugging Face or MiniMind checkpoint becomes a run"),
    "export": ("mlpkit.cli.export", "a run becomes a folder that transformers loads"),
    "plot": ("mlpkit.cli.plot", "activations and FFNs as pictures: SVG, PNG, PDF"),
    "report": ("mlpkit.cli.report", "runs compared: what is better, how surely, at what cost"),
    "plugins": ("mlpkit.cli.plugins", "the plugins: state, version, what each provides"),
    "check": ("mlpkit.cli.check", "the conformance kit on an entry or a distribution"),
    "new-plugin": ("mlpkit.cli.new_plugin", "write an installable plugin to start from"),
    "bench": ("mlpkit.cli.bench", "speed side by side with peers, on this machine"),
    "doctor": ("mlpkit.cli.doctor", "versions, device, plugins, data, self-check: for a report"),
    "completion": ("mlpkit.cli.completion", "shell completion for bash, zsh and fish"),
}
# what Hydra parses itself; argparse must not take its flags
PASSED_ON = ("train",)
EPILOG = """\
examples:
  mlpkit train  # the default: a dense SwiGLU on real text
  mlpkit train ffn=gated activation=gelu training=quick
  mlpkit train -m ffn=naive,gated,swiglu training=quick
  mlpkit describe ffn=naive model=small
  eval "$(mlpkit completion bash)"

exit codes: 0 done, 1 failed, 2 wrong configuration or input, 3 plugin, 4 checkpoint,
            5 NaN or infinite loss, 75 stopped by a signal (resume=auto goes on)
"""


class Parser(argparse.ArgumentParser):
    """argparse whose message is one line, as every other of the program."""

    def error(self, message: str) -> NoReturn:
        """Prints the message and ends with 2."""
        self.exit(2, f"mlpkit: {message}; {self.prog} --help shows what it takes\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code."""
    # Threads that spin while they wait starve each other as soon as anything else runs: two of
    # them beside one busy process trained 930 tokens a second, waiting passively 11,500.
    # OpenMP reads it when torch is loaded, which is later.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments[:1] or os.environ.get("HYDRA_FULL_ERROR") == "1"
    arguments = arguments[1:] if arguments[:1] == ["--debug"] else arguments
    try:
        return run(with_plugins(arguments))
    except KeyboardInterrupt:
        print("mlpkit: interrupted", file=sys.stderr)
        return 75  # as a training run that a signal has stopped
    except BrokenPipeError:  # the reader of a pipe, such as head, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        return tell(error)


def with_plugins(arguments: list[str]) -> list[str]:
    """Loads the local plugins of leading ``-p FILE_OR_MODULE``; returns what stands after them."""
    modules = []
    while arguments[:1] == ["-p"] and len(arguments) > 1:
        modules.append(arguments[1])
        arguments = arguments[2:]
    if modules:
        importlib.import_module("mlpkit.plugins").require(modules)
    return arguments


def run(arguments: Sequence[str]) -> int:
    """Finds the verb and hands over to its module.

    Raises:
        UnknownNameError: There is no such verb.
    """
    if arguments and arguments[0] in PASSED_ON:
        module = importlib.import_module(VERBS[arguments[0]][0])
        return int(module.run(list(arguments[1:])))
    verb = arguments[0] if arguments else ""
    if verb[:1].isalpha() and verb not in VERBS:
        from mlpkit.registry import UnknownNameError, suggestion  # only for this message

        raise UnknownNameError(
            f"unknown verb {verb!r}{suggestion(verb, VERBS)} (there are: {', '.join(VERBS)})"
        )
    parser = build_parser(verb)
    options = parser.parse_args(arguments)
    if not options.verb:
        parser.print_help()
        return 0
    return int(options.run(options))


def build_parser(verb: str) -> argparse.ArgumentParser:
    """The parser; only the named verb's own options are loaded."""
    parser = Parser(
        prog="mlpkit",
        description="The workbench for the FFN of a Transformer.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mlpkit {__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks (put it first)")
    parser.add_argument(
        "-p", metavar="FILE_OR_MODULE", help="load a local plugin (put it before the verb)"
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for name, (module, line) in VERBS.items():
        sub = verbs.add_parser(name, help=line, description=line)
        if name == verb:
            importlib.import_module(module).configure(sub, name)
    return parser


def tell(error: Exception) -> int:
    """Prints one message and returns the exit code that the error's class carries."""
    from mlpkit.registry import printable  # only for a message

    code = getattr(error, "exit_code", None)
    name = "" if code is not None else f"{type(error).__name__}: "
    if getattr(error, "said_elsewhere", False):  # by the first of a run's processes
        return int(code or 1)
    rank = os.environ.get("RANK", "0")
    said = printable(f"{name}{error}")
    print(f"mlpkit{f' [rank {rank}]' if rank != '0' else ''}: {said}", file=sys.stderr)
    if code is None:
        print("(mlpkit --debug … shows the traceback)", file=sys.stderr)
    return int(code or 1)
