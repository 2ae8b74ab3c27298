"""Each way in which a table can lie is planted, and the audit says of it what its page in docs/ tells."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from agent.contract import Exit
from tests.spark.lakes import told
from tests.unit.hub_jobs.audit.planted import lake as lakes
from tests.unit.hub_jobs.audit.planted import page
from tests.unit.hub_jobs.audit.planted.plants import PLANTS, Plant, Said


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lake in order."""
    lake = tmp_path_factory.mktemp("planted") / "lake"
    lakes.make(lake)
    return lake


@pytest.fixture
def lake(whole: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    copy = tmp_path / "lake"
    shutil.copytree(whole, copy)
    return copy


def _audited(lake: Path, *options: str) -> Said:
    code, _, findings = told(lake, *options)
    return code, findings


@pytest.mark.parametrize("options", [[], ["--deep"]])
def test_nothing_is_said_of_the_lake_in_order(lake: Path, options: list[str]) -> None:
    assert _audited(lake, *options) == (Exit.WELL, "")


@pytest.mark.parametrize(
    "plant", PLANTS, ids=[f"{plant.table}: {plant.lie} by {plant.by}: {plant.what}" for plant in PLANTS]
)
def test_what_is_planted_is_told(lake: Path, plant: Plant) -> None:
    plant.plant(lake)

    for options, (due, said) in (([], plant.plain), (["--deep"], plant.deep)):
        code, findings = _audited(lake, *options)
        assert (code, said in findings, bool(said)) == (due, True, bool(findings)), findings


def test_the_page_tells_what_is_planted() -> None:
    if os.environ.get("PETIOLE_WRITE") == "1":
        page.PAGE.write_text(page.with_table(page.PAGE.read_text()))
    assert page.shown(page.PAGE.read_text()) == page.table()
