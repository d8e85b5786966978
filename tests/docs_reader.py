"""Following a page of the documentation as a new user does: its blocks, in order, in a folder."""

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import chdir
from importlib import import_module
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
READMES = ("README.md", "README.zh-CN.md")
DOCS = tuple(sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")))
PAGES = (*READMES, "CONTRIBUTING.md", *DOCS)
# original and Chinese translation
PAIRS = (
    READMES,
    *((n.replace(".zh.md", ".md"), n) for n in DOCS if n.endswith(".zh.md")),
)
ORIGINALS = tuple(name for name in DOCS if not name.endswith(".zh.md"))
# Set-up and the whole suite: the checks of this repository run them, not this file.
NOT_RUN = ("make ", "pip ", "python3 -m venv", ". .venv", "pytest", "ruff ", "mypy", "pre-commit")
TINY = "training.max_steps=2 training.eval_tokens=2000 training.sample_tokens=8"
TINY += " training.batch_size=8 training.sequence_length=64 model.hidden_size=32"
TINY_DATA = "data.val_fraction=0.008"  # whole files, 50,000 bytes: the last validation reads all
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SETTING = re.compile(r"[A-Z_]+=")
TRAINING = re.compile(r"\bmlpkit( -p \S+)* train\b")


class Fence(NamedTuple):
    """A fenced block: its language and its lines."""

    language: str
    text: str

    @property
    def file(self):
        """The path that the first line names, as in "# foo.py"; empty for a script."""
        found = re.match(r"# ([\w/]+\.(?:py|toml))\n", self.text)
        return found.group(1) if found else ""


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


def fences(name, *languages):
    found = (Fence(*match.groups()) for match in FENCE.finditer(page(name)))
    return [fence for fence in found if not languages or fence.language in languages]


def prose(name):
    """A page without its fenced blocks."""
    return FENCE.sub("", page(name))


def words(name):
    """What stands in backticks."""
    return re.findall(r"`([^`\n]+)`", prose(name))


def headings(name):
    return re.findall(r"^(#+) (.+)$", prose(name), re.MULTILINE)


def slug(heading):
    """GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def table(name, heading):
    """The first cells of the rows of the first table below a heading, without backticks."""
    text = prose(name).partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (.+?) \|", text, re.MULTILINE)
    return [cell.strip("`") for cell in cells[2:]] if cells else []


def commands(fence):
    """The commands of a block, without prompts, outputs and comments."""
    if fence.language == "console":
        return re.findall(r"^\$ (.+)$", fence.text, re.MULTILINE)
    return [line for line in fence.text.splitlines() if line and not line.startswith("#")]


def strip_comments(fence):
    """A block without comments at the end of its lines: prose, which each language has its own."""
    return re.sub(r" +#.*$", "", fence.text, flags=re.MULTILINE)


def exists(dotted):
    """Whether a dotted word names a module, or something that a module offers."""
    module, _, name = dotted.rpartition(".")
    path = ROOT.joinpath(*dotted.split("."))
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    return find_spec(module) is not None and hasattr(import_module(module), name)


def form(line):
    """A line without its numbers (of bytes also without their unit) and with single spaces."""
    return re.sub(r" +", " ", re.sub(r"[\d.,:e+-]*\d( [KMG]?i?B\b)?", "#", line))


# Answers command lines, each in a fork: importing torch for every line would take most of the time.
SERVER = """
import json, os, sys
import matplotlib.figure, torch._dynamo
import mlpkit.cli.generate, mlpkit.cli.train, mlpkit.training
from mlpkit.cli import main

mlpkit.describe([])  # torch imports a good part of itself on first use
for cached in (mlpkit.plugins.load_environment, mlpkit.plugins.load_once):
    cached.cache_clear()  # each line has plugins of its own
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if not child:
        code = 1
        try:
            for number, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(job[name], os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
            os.chdir(job["folder"])
            os.environ.update(job["env"])
            sys.path[:0] = job["path"]
            code = main(job["arguments"])
        except SystemExit as error:
            code = error.code
        finally:
            sys.stdout.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Reader:
    """A new user who follows a page in an empty folder.

    Args:
        folder: Where the page's files and runs go.
        server: A process that runs ``SERVER``.
        path: Further folders of Python modules.
    """

    def __init__(self, folder, server, path=()):
        self.folder, self.server, self.path = folder, server, [str(p) for p in path]
        self.env = {"COLUMNS": "80"}

    def follow(self, name):
        """Does what the page's blocks say, in order."""
        for fence in fences(name, "bash", "console", "python", "toml"):
            if fence.file:
                target = self.folder / fence.file
                target.parent.mkdir(exist_ok=True)
                target.write_text(fence.text)
            elif fence.language == "python":
                with chdir(self.folder):
                    exec(compile(fence.text, name, "exec"), {})
            elif fence.language == "console":
                self.console(fence)
            elif fence.language == "bash":
                for line in commands(fence):
                    self.line(line)

    def install(self, name, package, site):
        """Installs the distribution whose files a page shows, without its dependencies."""
        source = self.folder / "plugin"
        for fence in fences(name, "python", "toml"):
            if fence.file.startswith((package, "pyproject")):
                (source / fence.file).parent.mkdir(parents=True, exist_ok=True)
                (source / fence.file).write_text(fence.text)
        pip = "python -m pip install -q --no-deps --no-build-isolation --disable-pip-version-check"
        self.shell("bash", f"{pip} --target {site} {source}")

    def console(self, fence):
        """Runs each command and compares what it prints with what the page shows."""
        shown = re.split(r"^\$ .+\n", fence.text, flags=re.MULTILINE)[1:]
        for command, expected in zip(commands(fence), shown, strict=True):
            assert trimmed(anywhere(self.line(command))) == trimmed(expected), command

    def line(self, line):
        """Runs a command line of a page and returns what it prints."""
        if line.startswith(NOT_RUN):
            return ""
        if "$(" in line:
            return self.shell("bash", line)
        words = shlex.split(self.small(line))
        settings = dict(
            w.split("=", 1) for w in takewhile(SETTING.match, words[words[0] == "export" :])
        )
        if words[0] == "export":
            self.env |= settings
            return ""
        assert words[len(settings)] == "mlpkit", line
        return self.mlpkit(words[len(settings) + 1 :], self.env | settings)

    def small(self, line):
        """A line as it is run here: training is tiny, and RUN is the run before it."""
        if TRAINING.search(line) and "--cfg" not in line:
            return f"{line} {TINY} {'' if 'data=' in line else TINY_DATA}"
        runs = sorted(self.folder.glob("outputs/*/*"))
        return re.sub(r"\bRUN\b", str(runs[-1]), line) if runs else line

    def mlpkit(self, arguments, env):
        out, err = self.folder / ".out", self.folder / ".err"
        job = {"arguments": arguments, "env": env, "path": self.path, "folder": str(self.folder)}
        self.server.stdin.write(json.dumps(job | {"out": str(out), "err": str(err)}) + "\n")
        self.server.stdin.flush()
        code = self.server.stdout.readline().strip()
        assert code == "0", f"{arguments}: exit code {code}\n{err.read_text()}"
        return out.read_text()

    def shell(self, shell, line):
        """Runs a line in a real shell, with the installed program."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = os.environ | {"PATH": path}
        done = subprocess.run(
            [shell, "-c", line],
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, ""), line
        return done.stdout


def anywhere(text):
    """An output without what depends on the machine: where mlpkit lies, and lines of its source."""
    return re.sub(r"(\.py):\d+$", r"\1:…", text.replace(str(ROOT), "…"), flags=re.MULTILINE)


def trimmed(text):
    return [line.rstrip() for line in text.strip("\n").splitlines()]
