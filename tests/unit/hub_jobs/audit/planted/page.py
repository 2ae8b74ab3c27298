"""The table of planted lies in docs/audit.md. `PETIOLE_WRITE=1` with the tests here writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.unit.hub_jobs.audit.planted.plants import PLANTS, Plant, Said

PAGE: Final = Path(__file__).parents[5] / "docs" / "audit.md"
_BEGIN: Final = "<!-- planted: made by tests/unit/hub_jobs/audit/planted/page.py -->\n"
_END: Final = "<!-- end of planted -->"


def table() -> str:
    """All that is planted, and what is said of it."""
    head = "| table | what | by | the audit | with `--deep` |\n|---|---|---|---|---|\n"
    return head + "".join(map(_row, PLANTS))


def shown(page: str) -> str:
    """The table as it stands in a page."""
    return page.partition(_BEGIN)[2].partition(_END)[0]


def with_table(page: str) -> str:
    """The page with the table as it should be."""
    before, _, rest = page.partition(_BEGIN)
    return f"{before}{_BEGIN}{table()}{_END}{rest.partition(_END)[2]}"


def _row(plant: Plant) -> str:
    more = "the same" if plant.more is None else _said(plant.more)
    return f"| {plant.table} | {plant.lie}: {plant.what} | {plant.by} | {_said(plant.plain)} | {more} |\n"


def _said(said: Said) -> str:
    code, text = said
    return f"{int(code)}: {text.strip()}" if text else f"{int(code)}: **nothing**"
