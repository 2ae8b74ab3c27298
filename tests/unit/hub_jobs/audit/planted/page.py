"""The planted lies: their sums in docs/proof.md, which `PETIOLE_WRITE=1` with the tests here writes, and
a page of the site with each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from agent.contract import Exit
from tests.unit.hub_jobs.audit.planted.plants import PLANTS, Plant, Said

PROOF: Final = Path(__file__).parents[5] / "docs" / "proof.md"
_HEAD: Final = """\
# Each lie that was planted

`make test` plants each lie into a lake that is in order, and runs the audit. *A person* gives delta-rs an
SQL statement or appends rows; *a bit* is one changed bit of a data page. A cell has the exit code and a part
of the findings. In settled hours the audit finds the same,
except a changed bit outside `seen`, which `--all` finds.

"""


def site_page() -> dict[str, str]:
    """The page of every lie, by its path in the site."""
    head = "| table | what | by | the audit | with `--deep` |\n|---|---|---|---|---|\n"
    return {"planted-all.md": _HEAD + head + "".join(map(_row, PLANTS))}


def table() -> str:
    """The sums, a line a table."""
    lines = [
        "| table | lies planted | found | found with `--deep` alone | not found |\n|---|---|---|---|---|\n"
    ]
    for name in [*dict.fromkeys(plant.table for plant in PLANTS)]:
        lines.append(_line(name, lambda plant, name=name: plant.table == name))  # type: ignore[misc]
    lines.append(_line("**Together**", lambda _: True))
    return "".join(lines)


def _line(name: str, chosen: Callable[[Plant], bool]) -> str:
    plants = [plant for plant in PLANTS if chosen(plant)]
    plain = [plant for plant in plants if plant.plain[0] != Exit.WELL or plant.plain[1]]
    deep = [plant for plant in plants if plant not in plain and plant.more and plant.more[0] != Exit.WELL]
    left = [f"{plant.lie}: {plant.what}" for plant in plants if plant not in plain and plant not in deep]
    found = f"{len(left)} ({', '.join(left)})" if left else "0"
    return f"| {name} | {len(plants)} | {len(plain)} | {len(deep)} | {found} |\n"


def _row(plant: Plant) -> str:
    more = "the same" if plant.more is None else _said(plant.more)
    return f"| {plant.table} | {plant.lie}: {plant.what} | {plant.by} | {_said(plant.plain)} | {more} |\n"


def _said(said: Said) -> str:
    code, text = said
    return f"{int(code)}: {text.strip()}" if text else f"{int(code)}: **nothing**"
