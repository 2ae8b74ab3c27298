"""The input `exec`: runs a command, at intervals or for good, and takes the lines that it prints.

The command is a list of arguments, never a line for a shell. It runs with the agent's user, without its
input, in an environment of PATH, HOME, USER, LANG, LC_ALL and TZ as the agent has them. What it prints is
read no faster than it can be stored: its `write` waits meanwhile. Its standard error goes to the log, five
lines a minute of at most 500 characters.

With `interval` it is run that often, at most `timeout` long, and a run that prints more than `output` is
ended; a run that is late is left out. Without, it runs for good and is started again when it ends, after 1 s
first and 60 s at most. An exit code other than 0 is logged once, and `petiole_input_up` is 0 until a run ends
well, or it runs again.

A command that is ended gets SIGTERM, and 3 s later SIGKILL, with all that it has started; so does what it
leaves behind when it ends by itself, and what is there when the agent is killed. A small process of its own
sees to that (`agent.leaf.inputs.exec.reaper`, about 10 MB while the command runs).

What was read is submitted until it is stored. If the agent is killed, data read but not yet stored is lost
(at most 1 MiB), and so is what is left in the pipe. Lines that are not readings become dead letters. A last
line without a newline is taken as NDJSON, and as line protocol if the command ended well.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from agent.base.files import UnseenError, mode_at
from agent.leaf.inputs.exec import ExecOptions
from agent.leaf.inputs.exec.program import Schedule
from agent.leaf.inputs.formats import LEAST_LINE, MAX_LINE
from agent.leaf.inputs.shared import ConfiguredInput
from agent.leaf.intake import Intake

MIN_INTERVAL: Final = 0.1
MAX_INTERVAL: Final = 86_400.0


class ExecInput(ConfiguredInput[ExecOptions]):
    """One `exec` input."""

    def _obstacles(self) -> Iterator[str]:
        options, directory = self._options, self._options.directory
        try:
            if directory is not None and not stat.S_ISDIR(mode_at(directory) or 0):
                yield f"the directory {directory} is not there; make it, or leave directory out"
        except UnseenError as why:
            yield f"the directory {directory} cannot be entered ({why}); let the agent's user enter it"
        if not _is_runnable(options.command):
            return  # a problem of the options
        if not _found(options.command[0], directory, options.variables().get("PATH")):
            stood = f"{options.command[0]!r:.200} is not a program that can be run"
            yield f"{stood}; give the path of one that the agent's user may run"

    def _mistakes(self) -> Iterator[str]:
        options = self._options
        if not options.command or not options.command[0]:
            yield 'command is empty; write it as a list, as ["/usr/bin/sensors", "-j"]'
        elif not _is_runnable(options.command):
            yield "an argument of command holds a NUL; leave it out"
        if any(
            not name or "=" in name or "\0" in name + value for name, value in options.environment.items()
        ):
            yield "a variable in environment has no name, or holds = or NUL"
        if options.interval is not None and not MIN_INTERVAL <= options.interval <= MAX_INTERVAL:
            yield f"interval is {options.interval} s; take 100ms to 1d"
        if not LEAST_LINE <= options.line <= MAX_LINE:
            yield f"line is {options.line} bytes; take {LEAST_LINE} bytes to 4MiB"

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Run the command until `stopping` is set, then end it and store what it has printed."""
        await Schedule(self._options, self._metrics, intake, stopping, self._log).run()


def _is_runnable(command: Sequence[str]) -> bool:
    return bool(command and command[0]) and not any("\0" in argument for argument in command)


def _found(program: str, directory: Path | None, path: str | None) -> bool:
    if "/" not in program:
        return shutil.which(program, path=path) is not None
    where = (directory or Path()) / program
    try:
        return stat.S_ISREG(mode_at(where) or 0) and os.access(where, os.X_OK)
    except UnseenError:
        return False
