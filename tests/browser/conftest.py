"""A browser for the tests of pages, and reports for it to open."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Browser, find_chromium

sys.path.append(str(Path(__file__).parents[1] / "report"))  # synthetic.py writes the runs


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Headless Chromium; without one the tests are skipped, in continuous integration they fail."""
    program = find_chromium()
    if program is None and os.environ.get("CI"):
        pytest.fail("CI is set and no Chromium was found: install it (apt-get install chromium)")
    if program is None:
        pytest.skip("no Chromium was found: install it to test the page in a browser")
    browser = Browser(program, tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()
