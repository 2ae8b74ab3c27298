"""An agent with its server, two processes, each of which can be hurt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from agent.demo.plan import Member
from agent.leaf.link.status import LinkState
from tests.faults.world.injected_faults import InjectedFaults
from tests.harness.agent_process import PETIOLE, Agent
from tests.harness.wait import WAIT_SECONDS, wait_for

_ANSWER_SECONDS = 5.0


class Program:
    """One process of a machine. Each way to hurt it is noted with the trace that it leaves."""

    def __init__(self, name: str, injected: InjectedFaults, pid: Callable[[], int | None]) -> None:
        self.name = name
        self._injected, self._pid = injected, pid

    @property
    def pid(self) -> int | None:
        """The process, None while it does not run."""
        return self._pid()

    def kill(self) -> None:
        """End it by SIGKILL; returns when it is gone."""
        self._end(signal.SIGKILL)

    def end(self) -> None:
        """Ask it to end, by SIGTERM; returns when it is gone."""
        self._end(signal.SIGTERM)

    def reload(self) -> None:
        """Have it take its configuration anew, by SIGHUP."""
        os.kill(self._there(), signal.SIGHUP)

    def freeze(self) -> None:
        """Stop it where it is, by SIGSTOP. It is let go on at the end of the case at the latest. That is
        seen by a sender that gets no answer or an agent that tells another state of its link."""
        pid = self._there()
        self._injected.add(f"{self.name} is stopped by SIGSTOP", self._injected.noticed)
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: is_stopped(pid), f"{self.name} is stopped")

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self._there(), signal.SIGCONT)
        self._injected.repaired(f"{self.name} goes on")

    def _end(self, number: signal.Signals) -> None:
        pid = self._there()

        def trace(_since: float) -> str | None:
            return None if lives(pid) or self.pid == pid else f"process {pid} is gone, {self.pid} runs"

        self._injected.add(f"{self.name} is ended by {number.name}", trace)
        os.kill(pid, number)
        wait_for(lambda: not lives(pid) and self.pid != pid, f"{self.name} is gone")

    def _there(self) -> int:
        pid = self.pid
        assert pid is not None, f"{self.name} does not run"
        return pid


class Machine(Agent):
    """A machine of the fleet: the agent's log is kept and read for traces. `prefix` is a command that runs
    the agent in surroundings of its own."""

    prefix: Sequence[str] = ()

    def __init__(self, member: Member, toml: str, injected: InjectedFaults) -> None:
        super().__init__(member, toml)
        self.injected = injected
        self.log.touch()
        name = member.domain
        self.agent = Program(f"the agent of {name}", injected, self._agent)
        self.nats = Program(f"the server of {name}", injected, self.server)
        injected.observers.append(self._noticed)

    def begin(self) -> None:
        """Run the agent, without waiting until it is ready."""
        if self.process is not None:
            self.process.wait(WAIT_SECONDS)
        command = [*self.prefix, PETIOLE, "run", "-c", str(self.member.config)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log, text=True)

    def start(self) -> None:
        """Run the agent, as its supervisor does after its end; returns when it is ready."""
        self.begin()
        self.injected.repaired(f"the agent of {self.member.domain} is started")
        self.wait_ready()

    def wait_ready(self) -> None:
        """Return when the agent takes readings."""
        wait_for(self.is_ready, f"the agent of {self.member.domain} is ready")

    def metrics(self) -> str:
        """What `/metrics` answers. Raises `OSError`, as `status` does: a case has hurt it."""
        return self._read("/metrics").decode()

    def _read(self, path: str) -> bytes:
        with urllib.request.urlopen(self.member.admin_url + path, timeout=_ANSWER_SECONDS) as answer:
            body: bytes = answer.read()
        return body

    @property
    def store(self) -> Path:
        """Where its server keeps its streams."""
        return self.member.state / "nats" / "store"

    def blocks(self, stream: str) -> list[Path]:
        """The files of a stream's messages, oldest first."""
        found = self.store.glob(f"jetstream/*/streams/{stream}/msgs/*.blk")
        return sorted(found, key=lambda path: int(path.stem))

    @contextmanager
    def without_server(self) -> Iterator[None]:
        """The server is killed, and its agent, which would start it again, stands still meanwhile."""
        agent = self._agent()
        assert agent is not None
        os.kill(agent, signal.SIGSTOP)
        try:
            self.nats.kill()
            yield
        finally:
            os.kill(agent, signal.SIGCONT)

    def new_epoch(self, since: float) -> str | None:
        """Why the agent began an epoch of its link, if it did."""
        told = self.said(since, event="new epoch")
        return f"{self.member.domain} began a new epoch: {told[0][1]['why']}" if told else None

    def end_well(self) -> int:
        """Ask the agent to end once it has drained; its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_SECONDS)

    def said(self, since: float = 0.0, **fields: str) -> list[tuple[float, dict[str, Any]]]:
        """The lines of the log from a moment on that have these fields; moments in epoch seconds."""
        return [
            (at, line)
            for at, line in self._lines()
            if at >= since and all(line.get(name) == value for name, value in fields.items())
        ]

    def says(self, event: str, times: int = 1) -> None:
        """Return when the agent has logged an event so many times."""
        wait_for(lambda: len(self.said(event=event)) >= times, f"{self.member.domain} says: {event}")

    def link_told(self, since: float) -> list[tuple[float, str]]:
        """The states of the link that the agent told from a moment on."""
        return [(at, str(line["state"])) for at, line in self.said(since, event="link") if "state" in line]

    def close(self) -> None:
        """End both processes, whatever state they are in."""
        for pid in (self._agent(), self.server()):
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        super().close()

    def _agent(self) -> int | None:
        if self.process is None or self.process.poll() is not None:
            return None
        return self.process.pid

    def _noticed(self, since: float) -> str | None:
        for at, state in self.link_told(since):
            if state != LinkState.FLOWING:
                return f"{self.member.domain} reported that its link is {state} after {at - since:.1f} s"
        return None

    def _lines(self) -> Iterator[tuple[float, dict[str, Any]]]:
        for text in self.log.read_text(errors="replace").splitlines():
            with suppress(ValueError, TypeError, KeyError):
                line = json.loads(text)
                yield datetime.fromisoformat(line["timestamp"]).timestamp(), line


def _status(pid: int) -> str | None:
    with suppress(psutil.NoSuchProcess):
        return str(psutil.Process(pid).status())
    return None


def is_stopped(pid: int) -> bool:
    """Whether a process stands still."""
    return _status(pid) == psutil.STATUS_STOPPED


def lives(pid: int) -> bool:
    """Whether a process runs."""
    return _status(pid) not in (None, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
