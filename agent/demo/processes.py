"""Runs the demonstration's processes with log files, ended by a reaper even after a kill."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TextIO

from agent.base.wait import timeout

_STOP_SECONDS = 30.0
GROUP, SERVER, DONE = "group", "server", "done"
"""Starts of lines to the reaper."""


class DemoError(Exception):
    """The demonstration failed; the text has reason and place."""


def program(name: str) -> str:
    """Return a program of this environment."""
    return str(Path(sys.executable).parent / name)


def _environment() -> dict[str, str]:
    """Return the environment for Spark with this Python."""
    here = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": f"{here}:{os.environ.get('PATH', os.defpath)}",
        "PYSPARK_PYTHON": sys.executable,
    }


class Processes:
    """Child processes by name, each with own group, ended by a reaper with their servers."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._servers: list[Path] = []
        self._reaper: asyncio.subprocess.Process | None = None

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    async def guard(self) -> None:
        with self.log("reaper").open("ab") as log:
            self._reaper = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "agent.demo.processes",
                program("petiole"),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def leaves_server(self, config: Path) -> None:
        """Note that an agent leaves an embedded server."""
        self._servers.append(config)
        self._tell(f"{SERVER} {config}")

    async def start(self, name: str, *command: str) -> asyncio.subprocess.Process:
        """Start a process in the background with a log."""
        with self.log(name).open("ab") as output:
            return await self._spawn(name, command, output.fileno(), output.fileno())

    async def output(self, name: str, *command: str, accept: tuple[int, ...] = (0,)) -> tuple[int, str]:
        """Run a process; returns exit code and output. Raises `DemoError` for an unaccepted code."""
        with self.log(name).open("ab") as log:
            process = await self._spawn(name, command, asyncio.subprocess.PIPE, log.fileno())
            printed, _ = await process.communicate()
            log.write(printed)
        code = process.returncode
        if code is None or code not in accept:
            raise DemoError(f"{name} ended with {code}; see {self.log(name)}")
        return code, printed.decode()

    async def kill(self, name: str) -> None:
        """SIGKILL one process and wait."""
        self._running[name].kill()
        await self._running[name].wait()

    async def terminate(self, name: str) -> None:
        """Terminate a process. Raises `DemoError` unless it exits with 0."""
        process = self._running[name]
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with timeout(_STOP_SECONDS):
                code = await process.wait()
        except TimeoutError:
            raise DemoError(f"{name} does not end; see {self.log(name)}") from None
        if code != 0:
            raise DemoError(f"{name} ended with {code}; see {self.log(name)}")

    async def end_all(self) -> None:
        """End all remaining processes and servers."""
        for process in self._running.values():
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        for config in self._servers:
            await self.output("server-stop", program("petiole"), "server", "stop", "-c", str(config))
        if self._reaper is not None:
            self._tell(DONE)
            await self._reaper.wait()

    async def _spawn(
        self, name: str, command: tuple[str, ...], stdout: int, stderr: int
    ) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            env=_environment(),
        )
        self._running[name] = process
        self._tell(f"{GROUP} {process.pid}")
        return process

    def _tell(self, line: str) -> None:
        if self._reaper is not None and self._reaper.stdin is not None:
            self._reaper.stdin.write(f"{line}\n".encode())


def main(lines: TextIO, petiole: str) -> None:
    """Run the reaper: each input line is a group or a server's configuration; without a last `done` it ends
    all.
    """
    groups: list[int] = []
    servers: list[str] = []
    for line in lines:
        kind, _, value = line.strip().partition(" ")
        if kind == DONE:
            return
        if kind == GROUP:
            groups.append(int(value))
        elif kind == SERVER:
            servers.append(value)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    for config in servers:
        subprocess.run([petiole, "server", "stop", "-c", config], check=False)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    main(sys.stdin, sys.argv[1])
