"""Runs a command, at intervals or permanently, and stores its printed lines: the input `exec`.

A full store blocks the command's `write`. Lines read are submitted until stored. A separate process
(`agent.leaf.inputs.exec.reaper`) ends the command with its descendants, even when the agent is killed.
docs/inputs.md describes restarts and losses.
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
from agent.base.logs import LogEdge, Sparse
from agent.base.metrics import Metrics
from agent.base.wait import Backoff, event_within
from agent.leaf.inputs.exec import ExecOptions
from agent.leaf.inputs.exec.program import Program
from agent.leaf.inputs.formats import LEAST_LINE, MAX_LINE, LineParser
from agent.leaf.inputs.shared import NO_SERVER, ConfiguredInput, LocalServer
from agent.leaf.inputs.shared.gatherer import MAX_SHARE, Buffer
from agent.leaf.inputs.shared.samples import check_interval
from agent.leaf.inputs.shared.submitter import RetryingSubmitter
from agent.leaf.intake import Intake

_FIRST_DELAY, _LONGEST_DELAY = 1.0, 60.0
_STEADY: Final = 60.0
"""A command that ran this long restarts after the first delay."""


class ExecInput(ConfiguredInput[ExecOptions]):
    _stopping: asyncio.Event
    _submitter: RetryingSubmitter
    _parser: LineParser

    def __init__(self, options: ExecOptions, metrics: Metrics, server: LocalServer = NO_SERVER) -> None:
        super().__init__(options, metrics, server)
        self._up = metrics.input_up.labels(options.name)
        self._failing = LogEdge(self._log, "the command runs well again")
        self._logged = Sparse()

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
        if options.interval is not None and (mistake := check_interval(options.interval)) is not None:
            yield mistake
        yield from options.line_problems()
        if options.whole and (options.mapping is None or options.interval is None):
            yield "whole makes one payload of the output of a run; give map or preset, and interval"
        if not LEAST_LINE <= options.line <= MAX_LINE:
            yield f"line is {options.line} bytes; take {LEAST_LINE} bytes to 4MiB"

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Run the command until `stopping`, then end it and store its output."""
        options, self._stopping = self._options, stopping
        self._submitter = RetryingSubmitter(options, self._metrics, intake, stopping, self._log)
        self._parser = options.parser(intake.domain)
        if options.interval is None:
            await self._for_good()
        else:
            await self._at_intervals(options.interval)
        self._submitter.end()

    async def _at_intervals(self, interval: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not self._stopping.is_set():
            self._tell(await self._once(self._options.timeout, self._options.output), "it is run again")
            due = max(due + interval, loop.time() - (loop.time() - due) % interval)
            await event_within(self._stopping, due - loop.time())

    async def _for_good(self) -> None:
        backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY, _STEADY)
        while not self._stopping.is_set():
            self._up.set(1)
            trouble = await self._once(None, None)
            if self._stopping.is_set():
                return
            self._tell(trouble or "it ended, though it is to run for good", "it is started again")
            await event_within(self._stopping, backoff.next())

    async def _once(self, timeout: float | None, limit: int | None) -> str | None:
        """Run the command and store at most `limit` bytes. Returns the fault."""
        async with asyncio.TaskGroup() as group:
            buffer = Buffer(MAX_SHARE, group)
            program = Program(
                self._options, self._parser, self._submitter, buffer, self._log, self._logged, limit
            )
            try:
                return await program.run(self._stopping, timeout)
            except OSError as error:
                return f"it cannot be started: {error.strerror or error}"

    def _tell(self, trouble: str | None, next_step: str) -> None:
        self._up.set(trouble is None)
        if trouble is None:
            self._failing.end()
        else:
            self._failing.begin(f"{self._options.command[0]}: {trouble}; {next_step}")


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
