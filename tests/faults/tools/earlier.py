"""This project as it was at an earlier commit: its files, and its agents as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from agent.demo.plan import Member
from tests.harness.agent_process import PETIOLE, Agent
from tests.harness.wait import WAIT_SECONDS, wait_for

_ROOT = Path(__file__).parents[3]
_JOB_SECONDS = 600.0


class NoHistoryError(Exception):
    """There is no such commit here; the text says why."""


class Earlier:
    """The files of a commit, below `directory`. Raises `NoHistoryError`."""

    def __init__(self, commit: str, directory: Path) -> None:
        self.commit = commit
        self._library = directory / commit
        self._library.mkdir(parents=True)
        archive = ("git", "-C", str(_ROOT), "archive", commit)
        try:
            packed = subprocess.run(archive, capture_output=True, check=False)
        except FileNotFoundError:
            raise NoHistoryError("git is not installed") from None
        if packed.returncode != 0:
            raise NoHistoryError(f"no commit {commit} here: {packed.stderr.decode().strip()}")
        subprocess.run(("tar", "-x", "-C", str(self._library)), input=packed.stdout, check=True)

    @property
    def environment(self) -> dict[str, str]:
        """That of a process that is to run this commit."""
        return {**os.environ, "PYTHONPATH": str(self._library)}

    def job(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a hub job of that commit to its end."""
        command = [sys.executable, "-m", f"hub_jobs.{name}", *arguments]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_JOB_SECONDS,
            check=False,
            env=self.environment,
            cwd=self._library,
        )


class EarlierAgent(Agent):
    """An agent of that commit."""

    def __init__(self, earlier: Earlier, member: Member, toml: str) -> None:
        self._earlier = earlier
        super().__init__(member, toml)

    def petiole(self, *command: str, seconds: float = WAIT_SECONDS) -> subprocess.CompletedProcess[str]:
        arguments = [PETIOLE, *command, "-c", str(self.member.config)]
        return subprocess.run(
            arguments,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env=self._earlier.environment,
        )

    def run(self) -> None:
        """Start it, and do not wait for anything; what it says stands in `said`."""
        with self.said.open("w") as said:
            self.process = subprocess.Popen(
                [PETIOLE, "run", "-c", str(self.member.config)],
                stderr=said,
                text=True,
                env=self._earlier.environment,
            )

    def start(self) -> None:
        """Run it; returns when it is ready."""
        self.run()
        wait_for(lambda: self.status_of("/readyz") == 200, f"the agent of {self._earlier.commit} is ready")

    @property
    def said(self) -> Path:
        """What the process wrote to standard error."""
        return self.member.directory / "earlier.log"


def kill(agent: Agent) -> None:
    """End an agent by SIGKILL, and the server that outlives it by SIGTERM."""
    server = agent.server()
    agent.end(signal.SIGKILL)
    assert server is not None
    os.kill(server, signal.SIGTERM)
    wait_for(lambda: agent.server() is None, "the server is gone")
