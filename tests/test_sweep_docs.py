"""The page on sweeps: its table of budgets is the configuration's."""

from __future__ import annotations

import dataclasses

from docs_reader import page, table

from mlpkit.configs.run import RunConfig

PAGE = "docs/sweeps.md"


def test_the_table_has_every_budget() -> None:
    (field,) = (field for field in dataclasses.fields(RunConfig) if field.name == "match")
    found = [cell.split("`")[0] for cell in table(PAGE, "At the same budget")]
    assert found == list(field.metadata["choices"])


def test_every_option_of_a_sweep_is_named() -> None:
    for key in ("match", "match_to", "keep_going", "rerun", "dry_run"):
        assert f"`{key}" in page(PAGE)
