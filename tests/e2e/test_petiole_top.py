"""`petiole top` beside a running agent, on a real terminal, in a pipe, and once."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from typer.testing import CliRunner

from agent.cli.main import app
from tests.harness.agent_process import PETIOLE, Agent
from tests.harness.wait import WAIT_SECONDS, wait_for

GOOD = b'{"device":"pump-7","metric":"pressure","value":2.4}'
ROWS, COLUMNS = 50, 40
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
BELOW_NOTHING = re.compile(r"(?<!backlog)/s\s+-[0-9<]")
COLOUR = re.compile(r"\x1b\[(?!0m|2m|1m)[0-9;]*m")


class Terminal:
    """What a program has written on a narrow terminal that knows no colour, and the program."""

    def __init__(self, command: list[str]) -> None:
        self._primary, secondary = pty.openpty()
        fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        unset = ("COLUMNS", "LINES", "FORCE_COLOR")
        kept = {name: value for name, value in os.environ.items() if name not in unset}
        variables = {**kept, "TERM": "xterm-256color", "NO_COLOR": "1"}
        self.process = subprocess.Popen(
            command, stdin=secondary, stdout=secondary, stderr=secondary, env=variables
        )
        os.close(secondary)
        self._written = b""
        self._seen = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                self._written += os.read(self._primary, 65_536)
            except OSError:  # the program has ended
                os.close(self._primary)
                return

    @property
    def written(self) -> str:
        """All of it, with the terminal's own codes."""
        return self._written.decode(errors="replace")

    def shows(self, *words: str) -> bool:
        """Whether all of these words are in what was written since `next`."""
        new = " ".join(ESCAPE.sub("", self.written[self._seen :]).split())
        return all(word in new for word in words)

    def next(self) -> None:
        """Look only at what comes from here on."""
        self._seen = len(self.written)


@contextmanager
def on_a_terminal(leaf: Agent, *words: str) -> Iterator[Terminal]:
    terminal = Terminal([PETIOLE, *words, "-c", str(leaf.member.config)])
    try:
        yield terminal
    finally:
        terminal.process.kill()
        terminal.process.wait(WAIT_SECONDS)


def test_the_rates_of_a_leaf_are_shown(leaf: Agent) -> None:
    _an_agent_that_does_not_run_is_told(leaf)
    leaf.start()
    _on_a_terminal_they_are_live_over_a_restart_of_the_agent(leaf)
    _once_shows_what_one_interval_brought(leaf)
    for command in ("top", "status --watch"):
        _in_a_pipe_looks_follow_each_other_until_the_reader_ends(leaf, command)


def _an_agent_that_does_not_run_is_told(leaf: Agent) -> None:
    away = CliRunner().invoke(app, ["top", "--once", "-c", str(leaf.member.config)])
    assert (away.exit_code, "see whether `petiole run` runs" in away.stderr) == (5, True)


def _on_a_terminal_they_are_live_over_a_restart_of_the_agent(leaf: Agent) -> None:
    with on_a_terminal(leaf, "top", "--interval", "0.5") as terminal:
        wait_for(lambda: terminal.shows("edge-1:", "input host, accepted/s", "runs yes"), "the leaf is shown")
        wait_for(lambda: terminal.shows("class normal,", "backlog/s +"), "its backlog grows: no hub is there")

        leaf.end(signal.SIGKILL)
        terminal.next()
        wait_for(lambda: terminal.shows("the agent does not answer at", "`petiole run` runs"), "it is gone")
        leaf.start()
        wait_for(lambda: terminal.shows("rates follow with the next look"), "no rate is made over the gap")
        terminal.next()
        wait_for(lambda: terminal.shows("input host, accepted/s", "; the last "), "the rates go on")

        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(WAIT_SECONDS) == 0
        assert BELOW_NOTHING.search(ESCAPE.sub("", terminal.written)) is None
        assert COLOUR.search(terminal.written) is None
        assert "Traceback" not in terminal.written


def _once_shows_what_one_interval_brought(leaf: Agent) -> None:
    with _piped(leaf, "top", "--once", "--interval", "1") as once:
        sent = 0
        while once.poll() is None:
            sent += leaf.post(GOOD, f"a-{sent}") == 204
        printed, errors = once.communicate()
    assert (once.returncode, errors) == (0, "")
    assert "\x1b" not in printed
    rows = {line.split()[0]: line.split() for line in printed.splitlines()}
    assert 0.0 < float(rows["http"][2].replace(",", "").lstrip("<")) <= sent + 0.1
    assert rows["http"][-1] == "yes"


def _in_a_pipe_looks_follow_each_other_until_the_reader_ends(leaf: Agent, command: str) -> None:
    with _piped(leaf, *command.split(), "--interval", "0.5") as looking:
        assert looking.stdout is not None
        assert looking.stderr is not None
        heads = (line for line in looking.stdout if line.startswith("edge-1: "))
        assert len(list(islice(heads, 2))) == 2
        looking.stdout.close()
        assert looking.wait(WAIT_SECONDS) == 0
        assert looking.stderr.read() == ""


def _piped(leaf: Agent, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PETIOLE, *command, "-c", str(leaf.member.config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_hub_is_told_where_its_leaves_are_shown(tmp_path: Path) -> None:
    hub = tmp_path / "hub.toml"
    hub.write_text('role = "hub"\ndomain = "hub"\n')
    ended = CliRunner().invoke(app, ["top", "-c", str(hub)])
    assert (ended.exit_code, "petiole fleet" in ended.stderr) == (2, True)
