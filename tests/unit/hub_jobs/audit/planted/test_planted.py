"""Of the lake in which lies are planted the audit says nothing, and docs/proof.md sums up the lies.
`test_settled` plants them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.contract import Exit
from tests.harness.marked import marked, with_marked
from tests.spark.lakes import told
from tests.unit.hub_jobs.audit.planted import lake as lakes
from tests.unit.hub_jobs.audit.planted import page


@pytest.mark.parametrize("options", [[], ["--deep"]])
def test_nothing_is_said_of_the_lake_in_order(tmp_path: Path, options: list[str]) -> None:
    lakes.make(tmp_path / "lake")
    code, _, findings = told(tmp_path / "lake", *options)
    assert (code, findings) == (Exit.WELL, "")


def test_the_page_tells_what_is_planted() -> None:
    if os.environ.get("PETIOLE_WRITE") == "1":
        page.PROOF.write_text(with_marked(page.PROOF.read_text(), "planted", page.table()))
    assert marked(page.PROOF.read_text(), "planted") == page.table()
