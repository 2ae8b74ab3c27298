"""The processes of the demonstration: started with their output in a file each, and all ended however it
ends, by a reaper beside them even if it is killed."""

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
"""How the lines for the reaper begin."""


class DemoError(Exception):
    """The demonstration cannot go on; the text says what happened and where to look."""


def program(name: str) -> str:
    """A program of the environment that this one runs in."""
    return str(Path(sys.executable).parent / name)


def _environment() -> dict[str, str]:
    """This one's environment, in which spark-submit and its workers find the same Python."""
    here = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": f"{here}:{os.environ.get('PATH', os.defpath)}",
        "PYSPARK_PYTHON": sys.executable,
    }


class Processes:
    """Child processes by name. Each leads a process group of its own, and a reaper ends them all, and the
    servers that they leave behind, should this process die first."""

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
        """The agent of this configuration leaves an embedded server behind."""
        self._servers.append(config)
        self._tell(f"{SERVER} {config}")

    async def start(self, name: str, *command: str) -> asyncio.subprocess.Process:
        """Start a process in the background; its output is appended to its log."""
        with self.log(name).open("ab") as output:
            return await self._spawn(name, command, output.fileno(), output.fileno())

    async def output(self, name: str, *command: str, accept: tuple[int, ...] = (0,)) -> tuple[int, str]:
        """Run a process to its end; its exit code and what it printed. Raises `DemoError` for another
        code."""
        with self.log(name).open("ab") as log:
            process = await self._spawn(name, command, asyncio.subprocess.PIPE, log.fileno())
            printed, _ = await process.communicate()
            log.write(printed)
        code = process.returncode
        if code is None or code not in accept:
            raise DemoError(f"{name} ended with {code}; see {self.log(name)}")
        return code, printed.decode()

    async def kill(self, name: str) -> None:
        """End one process by SIGKILL, it alone, and wait until it is gone."""
        self._running[name].kill()
        await self._running[name].wait()

    async def terminate(self, name: str) -> None:
        """Ask a process to end. Raises `DemoError` when it does not, or not with exit code 0."""
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
        """End every process that is left, with its group, and every server left behind."""
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
    """The reaper. Each line of its input is a process group to end, or a configuration whose embedded server
    is to stop; when the input ends without a last line `done`, it ends them all."""
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
