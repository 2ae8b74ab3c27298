"""Figures of benchmarks that stand in hand-written documents are those of the kept results."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.kept import read_all

DOCS = Path(__file__).parents[2] / "docs"
KEPT = read_all()
TOLERANCE = 0.1


class Quoted(NamedTuple):
    """A figure as a page writes it."""

    page: str
    text: str
    """The sentence or cell; the figure is `#`."""
    benchmark: str
    row: str
    """The first row of this pattern."""
    of_other: bool = False
    """Whether it is that of the alternative."""


IDLE = "idle link, one class"
CAUGHT_UP = "{} sources*hub SIGKILL, the last is caught up after the hub's process starts*"
QUOTED = (
    Quoted("link.md", "| **all, one class** | **#** |", "wire", IDLE),
    Quoted("link.md", "| **all, three classes** | **#** |", "wire", "idle link, three classes"),
    Quoted("link.md", "| raw JetStream, one durable source | # |", "wire", IDLE, of_other=True),
    Quoted("link.md", "is caught up after # s with 300", "fleet", CAUGHT_UP.format(300)),
    Quoted("link.md", "300 sources, after # s with 1,000", "fleet", CAUGHT_UP.format(1000)),
    Quoted("link.md", "and after # s with 2,000", "fleet", CAUGHT_UP.format(2000)),
    Quoted("hub-cluster.md", "agent takes # % of a core and", "fleet-10k", "*at rest: registrar, CPU"),
    Quoted("hub-cluster.md", "of a core and # MB, and its server", "fleet-10k", "*at rest: registrar, RSS"),
    Quoted("hub-cluster.md", "its server takes # % of a core.", "fleet-10k", "*the hub's nats-server, CPU"),
    Quoted("hub-cluster.md", "it knows all leaves within # s", "fleet-10k", "*all known after its start"),
    Quoted("what-to-do.md", "# MB a day with one class", "wire", IDLE),
)


@pytest.mark.parametrize("quoted", QUOTED, ids=lambda one: f"{one.page}: {one.text[:40]}")
def test_a_quoted_figure_is_what_was_measured(quoted: Quoted) -> None:
    pattern = re.escape(quoted.text).replace(re.escape("#"), r"(\d+(?:\.\d+)?)")
    found = re.findall(pattern, " ".join((DOCS / quoted.page).read_text().split()))
    assert len(found) == 1, f"{quoted.page} has {quoted.text!r} {len(found)} times"
    line = next(line for line in KEPT[quoted.benchmark].lines if fnmatchcase(line.what, quoted.row))
    measured = line.other if quoted.of_other else line.value
    assert measured is not None
    assert float(found[0]) == pytest.approx(measured, rel=TOLERANCE), f"{quoted.page}: {quoted.text}"
