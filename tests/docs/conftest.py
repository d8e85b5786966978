"""What the tests of the documentation share: a process for command lines, and the built site."""

import os
import subprocess
import sys

import pytest
from docs_reader import ROOT, SERVER, Reader


@pytest.fixture(scope="session")
def server():
    """A process that answers command lines."""
    command, pipe = [sys.executable, "-c", SERVER], subprocess.PIPE
    env = os.environ | {"OMP_NUM_THREADS": "1"}  # so small that threads wait more than they work
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env) as process:
        yield process
        process.stdin.close()


@pytest.fixture(scope="session")
def readme_folder(tmp_path_factory, server):
    """The folder of someone who has followed the README from its first to its last block."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "notes.txt").write_text("".join(f"note {i}: {i * i}\n" for i in range(2000)))
    Reader(folder, server).follow("README.md")
    return folder


# Both languages in one process: the pages that the code writes are made once.
BUILD = """
import logging
import sys
from mkdocs.commands.build import build
from mkdocs.config import load_config

logging.basicConfig(level=logging.WARNING)
for name, folder in (("mkdocs.yml", ""), ("mkdocs.zh.yml", "/zh")):
    build(load_config(name, site_dir=sys.argv[1] + folder))
"""


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The built site; a warning of mkdocs, such as a broken link, fails it."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder
