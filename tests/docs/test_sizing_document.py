"""docs/capacity.md shows the figures of `petiole sizing`, and these are what was measured.

With `PETIOLE_WRITE=1` (`make sizing-table`) the tables are written into the document.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli.sizing_figures import FIGURES, Figure
from bench.kept import Kept, figure, read_all

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "capacity.md"
TOLERANCE = 0.1
KEPT = read_all()


def differs(mine: Figure, kept: dict[str, Kept]) -> str:
    """What is wrong with a figure from a benchmark, empty if nothing is."""
    rows = [line for line in kept[mine.source].lines if line.what == mine.row] if mine.source in kept else []
    if not rows:
        return f"{mine.source} has no row {mine.row!r}"
    measured = rows[0]
    if measured.unit != mine.unit:
        return f"{mine.row}: is in {measured.unit}"
    if abs(measured.value - mine.value) > TOLERANCE * measured.value:
        return f"{mine.row}: {measured.value} was measured, FIGURES says {mine.value}; take it over"
    return ""


@pytest.mark.parametrize("name", [name for name, one in FIGURES.items() if not one.document])
def test_a_figure_is_what_its_benchmark_measured(name: str) -> None:
    assert differs(FIGURES[name], KEPT) == ""


@pytest.mark.parametrize("name", [name for name, one in FIGURES.items() if one.document])
def test_a_figure_of_a_document_stands_there(name: str) -> None:
    mine = FIGURES[name]
    assert mine.row in (DOCS / mine.source).read_text()
    assert f"{mine.value:g}" in re.findall(r"\d+(?:\.\d+)?", mine.row)


def test_a_figure_that_has_drifted_is_found() -> None:
    good = FIGURES["idle 1"]
    for value, wrong in ((1.05, False), (1.2, True), (0.8, True)):
        moved = Figure(good.value * value, good.unit, good.source, good.row)
        assert bool(differs(moved, KEPT)) is wrong
    assert differs(Figure(1.0, "s", "wire", "no such row"), KEPT) == "wire has no row 'no such row'"


def batches() -> Iterator[str]:
    """The table of what a batch costs."""
    costs: dict[str, list[str]] = {}
    sizes = []
    for one in FIGURES.values():
        where, found, size = one.row.partition(", readings a batch: ")
        if found:
            costs.setdefault(where, []).append(figure(one.value))
            sizes.append(size)
    yield f"| readings in the batch | {' | '.join(dict.fromkeys(sizes))} |"
    yield "| --- |" + " --- |" * len(set(sizes))
    for where, values in costs.items():
        yield f"| {where} | {' | '.join(values)} |"


def others() -> Iterator[str]:
    """The table of everything else, with the machine that a benchmark had."""
    yield "| figure | | from | machine |"
    yield "| --- | --- | --- | --- |"
    for name, one in FIGURES.items():
        if one.source == "sizing":
            continue
        what = name if one.document else one.row
        machine = "" if one.document else "quiet" if KEPT[one.source].quiet else "under load"
        source = "below" if one.document else f"[{one.source}](../bench/results/{one.source}.json)"
        yield f"| {what} | {figure(one.value)} {one.unit} | {source} | {machine} |"


def test_the_document_shows_them() -> None:
    text = PAGE.read_text()
    for name, rows in (("batches", batches()), ("figures", others())):
        table = f"<!-- {name} -->\n" + "".join(f"{row}\n" for row in rows) + f"<!-- /{name} -->"
        pattern = re.compile(rf"<!-- {name} -->\n.*?<!-- /{name} -->", re.DOTALL)
        if os.environ.get("PETIOLE_WRITE") == "1":
            text = pattern.sub(lambda _, new=table: new, text)  # type: ignore[misc]
            PAGE.write_text(text)
        assert pattern.findall(text) == [table], "run `make sizing-table`"


def test_what_it_cites_in_words_is_what_was_measured() -> None:
    (sample,) = {one.value for one in KEPT["wire"].lines if "a sample of about" in one.what}
    (whole,) = {one.value for one in KEPT["wire"].lines if one.what.endswith("three tags, 500 a request")}
    (hub,) = re.findall(r"server of the hub, .*? memory ([\d.]+) MiB", PAGE.read_text())
    text = " ".join(PAGE.read_text().split())
    assert f"took {whole:.1f} bytes a reading over the link in batches of 500 and {sample:.1f} in" in text
    of_500, of_100 = FIGURES["the link 500"].value / 500, FIGURES["the link 100"].value / 100
    assert f"where these take {of_500:.1f} and {of_100:.0f}" in text
    assert f"with two leaves it held {hub} MiB" in text
