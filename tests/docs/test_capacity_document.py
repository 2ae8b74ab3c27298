"""The figures of docs/capacity.md that a benchmark measured are those of its kept result."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from bench.kept import read_all

PAGE: Final = (Path(__file__).parents[2] / "docs" / "capacity.md").read_text()
TOLERANCE: Final = 0.1
KEPT: Final = read_all()


def measured() -> list[tuple[str, str, str, str]]:
    """Benchmark, row, value and unit of each figure."""
    found = re.findall(r"^\| (.+?) \| ([\d,.]+) (\S.*?) \| \[([\w-]+)\]\(", PAGE, re.MULTILINE)
    figures = [(source, row, value, unit) for row, value, unit, source in found]
    table = PAGE.partition("| readings in the batch |")[2]
    head, _, *rows = table.partition("\n\n")[0].splitlines()
    sizes = re.findall(r"\d+", head)
    for row in rows:
        if row.startswith("| "):
            _, where, *values, _ = map(str.strip, row.split("|"))
            pairs = zip(sizes, values, strict=True)
            figures += [
                ("sizing", f"{where}, readings a batch: {size}", value, "bytes/batch")
                for size, value in pairs
            ]
    return figures


FIGURES: Final = measured()


def test_both_tables_are_read() -> None:
    assert {source for source, *_ in FIGURES} > {"sizing", "wire", "fleet", "spark-ingest"}
    assert sum(source == "sizing" for source, *_ in FIGURES) == 20


@pytest.mark.parametrize(("source", "row", "value", "unit"), FIGURES, ids=[row for _, row, *_ in FIGURES])
def test_a_figure_is_what_its_benchmark_measured(source: str, row: str, value: str, unit: str) -> None:
    line = next(one for one in KEPT[source].lines if one.what == row)
    assert line.unit == unit
    assert float(value.replace(",", "")) == pytest.approx(line.value, rel=TOLERANCE)


def test_what_it_cites_in_words_is_what_was_measured() -> None:
    (sample,) = {one.value for one in KEPT["wire"].lines if "a sample of about" in one.what}
    (whole,) = {one.value for one in KEPT["wire"].lines if one.what.endswith("three tags, 500 a request")}
    text = " ".join(PAGE.split())
    assert f"took {whole:.1f} bytes a reading over the link in batches of 500 and {sample:.1f} in" in text
