"""Prints query results: coloured on a terminal, plain in a pipe, foreign names escaped."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.base.logs import shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_PIPE_WIDTH: Final = 10_000
"""Disables cutting in pipes."""
_GAP: Final = "  "

GOOD: Final = "green"
WAITS: Final = "yellow"
BAD: Final = "bold red"
DIM: Final = "dim"


class TerminalLine(NamedTuple):
    """One line with an optional `style`."""

    text: str
    style: str = ""


def console() -> Console:
    """Return standard output; colour only on terminals without NO_COLOR."""
    from rich.console import Console

    class PipedConsole(Console):
        """Lets the caller handle a closed pipe."""

        def on_broken_pipe(self) -> None:
            raise

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return PipedConsole(highlight=False, markup=False, emoji=False, soft_wrap=False, width=width)


def text(line: TerminalLine) -> Text:
    from rich.text import Text

    return Text(shown(line.text), style=line.style)


def draw(lines: Iterable[TerminalLine]) -> None:
    """Print lines; tolerates a closed pipe."""
    try:
        _print(lines)
    except BrokenPipeError:
        closed_pipe()


def _print(lines: Iterable[TerminalLine]) -> None:
    out = console()
    for line in lines:
        out.print(text(line))
    sys.stdout.flush()


def watch(lines: Callable[[], list[TerminalLine]], seconds: float) -> None:
    """Show new lines every `seconds` until Ctrl-C or SIGTERM: in place on a terminal, appended in a pipe."""
    if not sys.stdout.isatty():
        repeat(lambda: _print([*lines(), TerminalLine("")]), seconds)
        return
    from rich.console import Group
    from rich.live import Live

    with (
        until_interrupted(),
        Live(console=console(), auto_refresh=False, screen=True, vertical_overflow="ellipsis") as live,
    ):
        while True:
            live.update(Group(*map(text, lines())), refresh=True)
            time.sleep(seconds)


def repeat(show: Callable[[], None], seconds: float) -> None:
    """Call `show` every `seconds` until Ctrl-C, SIGTERM or a closed pipe."""
    with until_interrupted():
        while True:
            show()
            time.sleep(seconds)


@contextmanager
def until_interrupted() -> Iterator[None]:
    """End the body quietly on Ctrl-C, SIGTERM or a closed pipe."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Set for SIGINT as well: a shell starts what runs in the background with the signal ignored.
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        closed_pipe()


def closed_pipe() -> None:
    """Drop buffered output after the reader closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def now_text() -> str:
    """Return the time for a heading."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime())


def rows_that_fit(reserved: int) -> int | None:
    """Return the lines that fit below `reserved` others; None in a pipe."""
    if not sys.stdout.isatty():
        return None
    return max(3, console().size.height - reserved)


def table(
    head: Sequence[str],
    rows: Sequence[tuple[Sequence[str], str]],
    numbers: Iterable[int] = (),
    width: int | None = None,
) -> list[TerminalLine]:
    """Format rows (cells and style); `numbers` columns are right-aligned, the last is cut to `width`."""
    right = frozenset(numbers)
    cells = [[shown(cell) for cell in row] for row, _ in rows]
    widths = [max(len(row[at]) for row in [list(head), *cells]) for at in range(len(head))]
    lines = [TerminalLine(_joined(head, widths, right, width), DIM)]
    return lines + [
        TerminalLine(_joined(row, widths, right, width), style)
        for row, (_, style) in zip(cells, rows, strict=True)
    ]


def cut_short(left: int) -> list[TerminalLine]:
    """Return the note below a cut table."""
    return [TerminalLine(f"and {left} more; all of them in a pipe or with --json", WAITS)] if left > 0 else []


def _joined(cells: Sequence[str], widths: Sequence[int], right: frozenset[int], width: int | None) -> str:
    placed = [
        cell.rjust(size) if at in right else cell.ljust(size)
        for at, (cell, size) in enumerate(zip(cells, widths, strict=True))
    ]
    joined = _GAP.join(placed).rstrip()
    if width is not None and len(joined) > width:
        return joined[: max(0, width - 1)].rstrip() + "…"
    return joined


def wrapped(line: TerminalLine, width: int | None) -> list[TerminalLine]:
    """Wrap a line to the width, indenting continuations."""
    text = shown(line.text)
    if width is None or len(text) <= width:
        return [TerminalLine(text, line.style)]
    indent = " " * (len(text) - len(text.lstrip()))
    rows = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=f"{indent}  ")
    return [TerminalLine(row, line.style) for row in rows]


def terminal_width() -> int | None:
    """Return the terminal's columns, None in a pipe."""
    return console().size.width if sys.stdout.isatty() else None
