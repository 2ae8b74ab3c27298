"""Runs the command of an `exec` input once, with its descendants; logs its standard error."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Final, cast

from structlog.typing import FilteringBoundLogger

from agent.base import logs
from agent.base.logs import Sparse
from agent.base.wait import event_within
from agent.leaf.inputs.exec import ExecOptions, reaper
from agent.leaf.inputs.formats import LineCutter, LineParser
from agent.leaf.inputs.shared.gatherer import Buffer, Gatherer
from agent.leaf.inputs.shared.submitter import RetryingSubmitter, letter

GRACE: Final = 3.0
"""Seconds from SIGTERM to SIGKILL."""
_LATE: Final = 2.0
"""Further seconds until the reaper is killed."""
CLOSED: Final = 5.0
"""Seconds that a permanent command may run after closing its output."""
_MAX_LOGGED: Final = 500
_ORIGIN: Final = "the command"
_REAPER: Final = str(Path(reaper.__file__).resolve())
_STDOUT, _STDERR = 1, 2


class Program(asyncio.SubprocessProtocol):
    """A running command. `limit` bounds its output in bytes; None for no limit."""

    def __init__(
        self,
        options: ExecOptions,
        parser: LineParser,
        submitter: RetryingSubmitter,
        buffer: Buffer,
        log: FilteringBoundLogger,
        logged: Sparse,
        limit: int | None,
    ) -> None:
        self._options, self._parser, self._submitter, self._log, self._logged = (
            options,
            parser,
            submitter,
            log,
            logged,
        )
        self._buffer = buffer
        self._room = limit
        self._cutter = LineCutter(options.line)
        self._stderr = LineCutter(_MAX_LOGGED * 4)
        self._transport: asyncio.SubprocessTransport
        self._over = asyncio.Event()
        self._ending = False
        self._ended_for: str | None = None
        self._closed: asyncio.TimerHandle | None = None
        self._source = Gatherer(buffer, parser, submitter, self._pause, self._resume, lambda: None)
        buffer.join(self._source)

    async def run(self, stopping: asyncio.Event, timeout: float | None) -> str | None:
        """Run until the end, `stopping`, or `timeout` seconds; returns the fault or None.
        Raises `OSError`.
        """
        options = self._options
        loop = asyncio.get_running_loop()
        arguments = [sys.executable, "-I", "-S", _REAPER, str(os.getpid()), str(GRACE), *options.command]
        await loop.subprocess_exec(
            lambda: self,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=None if options.directory is None else str(options.directory),
            env=options.variables(),
            start_new_session=True,
        )
        try:
            await self._wait(stopping, timeout)
        finally:
            self._transport.close()
            # Where the reaper was killed, others may hold the output still, and what came last is read now.
            await event_within(self._over, _LATE)
        return self._outcome(stopping.is_set())

    async def _wait(self, stopping: asyncio.Event, timeout: float | None) -> None:
        stop = asyncio.ensure_future(stopping.wait())
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait((stop, over), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                return
            if not stop.done():
                self._end(f"it ran for longer than {timeout:g} s")
            self._signal(signal.SIGTERM)
            # Only what is read to its end is known to have ended.
            self._ending = True
            if self._source.paused:
                self._source.go_on()
            await asyncio.wait((over,), timeout=GRACE + _LATE)
            if not over.done():
                self._signal(signal.SIGKILL)
                await asyncio.wait((over,), timeout=_LATE)
        finally:
            stop.cancel()
            over.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == _STDERR:
            self._say(self._stderr.feed(data))
            return
        if self._room is not None:
            self._room -= len(data)
            if self._room < 0:
                self._end(f"it printed more than {self._options.output} bytes (option output)")
                return
        if self._ending and self._source.room <= 0:
            self._submitter.lost += data.count(b"\n")
            return
        if self._options.whole:
            data = data.replace(b"\n", b" ")  # equal in JSON, whose texts have no newline
        before = self._cutter.too_long
        lines = self._cutter.feed(data)
        if (count := self._cutter.too_long - before) > 0:
            reason = f"longer than {self._options.line} bytes (option line); nothing of it was kept"
            self._source.dead_letter("too_long", [letter(b"", _ORIGIN, reason)] * count)
        if lines:
            self._source.add(lines, _ORIGIN)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == _STDOUT and self._room is None:
            loop = asyncio.get_running_loop()
            self._closed = loop.call_later(CLOSED, self._end, "it runs on and has closed its output")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._closed is not None:
            self._closed.cancel()
        last = self._cutter.end()
        if last and (self._parser.is_whole(last) or self._transport.get_returncode() == 0):
            self._source.add(last, _ORIGIN)
        elif last:
            text = "the last line has no newline: it may be a part of one"
            self._source.dead_letter("cut_off", [letter(last[:-1], _ORIGIN, text)])
        self._say(self._stderr.end())
        self._source.flush()
        self._buffer.leave(self._source)
        self._over.set()

    def _outcome(self, stopped: bool) -> str | None:
        if self._ended_for is not None or stopped:
            return self._ended_for
        code = self._transport.get_returncode()
        if code is not None and 128 < code < 128 + signal.NSIG:
            return f"it was ended by signal {code - 128}"
        return None if code == 0 else f"it ended with exit code {code}"

    def _end(self, why: str) -> None:
        if self._ended_for is None:
            self._ended_for = why
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self._transport.get_returncode() is None:
            self._transport.send_signal(number)

    def _say(self, lines: bytes) -> None:
        for line in lines.splitlines():
            self._logged.report(self._log.warning, "command wrote to stderr", text=shown(line))

    def _pause(self) -> None:
        if not self._ending:
            self._reading(go_on=False)

    def _resume(self) -> None:
        self._reading(go_on=True)

    def _reading(self, *, go_on: bool) -> None:
        reading = cast(asyncio.ReadTransport | None, self._transport.get_pipe_transport(_STDOUT))
        if reading is None or reading.is_closing():
            return
        if go_on:
            reading.resume_reading()
        else:
            reading.pause_reading()


def shown(line: bytes) -> str:
    """Return a line safe for terminals."""
    text = logs.shown(line.decode(errors="backslashreplace"))
    return text if len(text) <= _MAX_LOGGED else f"{text[:_MAX_LOGGED]}…"
