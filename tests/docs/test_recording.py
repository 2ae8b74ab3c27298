"""A terminal's recording shows what was said, when it was said."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from deploy.recording import SPEED, Line, drawn, record

SVG = "{http://www.w3.org/2000/svg}"


def test_what_a_command_says_is_recorded_line_by_line_without_its_colours() -> None:
    program = "import time; print('\\x1b[31mfirst\\x1b[0m', flush=True); time.sleep(1); print('second')"
    first, second = record([sys.executable, "-c", program])
    assert (first.text, second.text) == ("first", "second")
    assert second.at - first.at > 0.2


def test_a_command_that_fails_gives_no_recording() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        record([sys.executable, "-c", "raise SystemExit(3)"])


def test_each_line_comes_at_its_time_and_harmful_text_stays_text() -> None:
    picture = ElementTree.fromstring(drawn("make demo", [Line(4.0, "a"), Line(8.0, "<script>&")]))
    lines = [one for one in picture.iter(f"{SVG}text") if one.get("class") == "l"]
    assert [one.text for one in lines] == ["a", "<script>&"]
    assert [one.get("style") for one in lines] == [
        f"animation-delay:{4 / SPEED:.2f}s",
        f"animation-delay:{8 / SPEED:.2f}s",
    ]
    assert [one.tag for one in picture.iter()].count(f"{SVG}script") == 0


def test_the_figures_beside_the_picture_of_the_demonstration_are_its_own() -> None:
    root = Path(__file__).parents[2]
    rows = re.findall(r"│ edge-\d │ +([\d,]+) │ +([\d,]+) │", (root / "docs/images/demo.svg").read_text())
    acknowledged, stored = (sum(int(row[column].replace(",", "")) for row in rows) for column in (0, 1))
    text = " ".join((root / "README.md").read_text().split())
    assert f"{acknowledged:,} readings were acknowledged, {stored:,} are in the table" in text
