"""python -m deploy.recording PICTURE TITLE COMMAND…: runs a command in a terminal and draws what it says,
line by line as it came, as an animated picture (`make docs WRITE=recording`).

The times are those of the run, divided by `SPEED`. Where a picture is not animated, or its reader asked for
less motion, all lines are there from the beginning. It imports nothing of the agent.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

SPEED: Final = 8
COLUMNS: Final = 106
_LINE_HEIGHT, _LETTER, _LEFT, _TOP = 18, 8.0, 16, 44
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STYLE: Final = """<style>
text{font:13px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d6dbd3;white-space:pre}
.l{animation:come .01s linear backwards} .p{fill:#8fc58a} .q{fill:#8a9386}
@keyframes come{from{opacity:0}to{opacity:1}}
@media (prefers-reduced-motion:reduce){.l{animation:none}}
</style>"""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of output and the seconds since the command began."""

    at: float
    text: str


def record(command: Sequence[str]) -> list[Line]:
    """What a command says in a terminal of `COLUMNS` columns. Raises `subprocess.CalledProcessError` where it
    fails."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
    began = time.monotonic()
    process = subprocess.Popen(
        command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=environment
    )
    os.close(theirs)
    lines: list[Line] = []
    with os.fdopen(ours, "rb") as terminal:
        try:
            for raw in terminal:
                text = _CONTROL.sub("", raw.decode(errors="replace")).rstrip("\r\n")
                lines.append(Line(time.monotonic() - began, text))
        except OSError:  # how a terminal of Linux ends when nobody holds its other side any more
            pass
    if process.wait() != 0:
        raise subprocess.CalledProcessError(process.returncode, list(command))
    return lines


def drawn(title: str, lines: Sequence[Line]) -> str:
    """An animated SVG of the lines below the command `title`."""
    width = _LEFT * 2 + round(COLUMNS * _LETTER)
    height = _TOP + _LINE_HEIGHT * (len(lines) + 2)
    told = f'role="img" aria-label="{escape(title)} in a terminal"'
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {told}>',
        _STYLE,
        f'<rect width="{width}" height="{height}" rx="8" fill="#1c211b"/>',
        f'<text class="q" x="{_LEFT}" y="24">recorded, played {SPEED} times as fast</text>',
        f'<text x="{_LEFT}" y="{_TOP + 4}"><tspan class="p">$ </tspan>{escape(title)}</text>',
    ]
    for number, line in enumerate(lines, 1):
        y = _TOP + 4 + number * _LINE_HEIGHT
        delay = f"animation-delay:{line.at / SPEED:.2f}s"
        rows.append(f'<text class="l" style="{delay}" x="{_LEFT}" y="{y}">{escape(line.text)}</text>')
    return "\n".join([*rows, "</svg>", ""])


def main(arguments: Sequence[str]) -> None:
    """Record the command and write the picture."""
    picture, title, *command = arguments
    Path(picture).write_text(drawn(title, record(command)))


if __name__ == "__main__":
    main(sys.argv[1:])
