"""The inputs of a leaf's agent that run: each with a switch, and exchangeable one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from agent.intake import Input
from agent.supervision import Switch

Run = Callable[[Input, asyncio.Event], Awaitable[None]]


@dataclass(slots=True)
class _Entry:
    input: Input
    switch: Switch
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class InputSet:
    """Runs inputs, each by `run` until the event that it is handed is set."""

    def __init__(self, inputs: Iterable[Input], run: Run) -> None:
        self._run = run
        self._entries = {one.name: _Entry(one, Switch()) for one in inputs}
        self._group: asyncio.TaskGroup | None = None
        self._stopped = False

    @property
    def names(self) -> list[str]:
        """The names of all inputs."""
        return list(self._entries)

    @property
    def switches(self) -> Mapping[str, Switch]:
        """What turns each on and off."""
        return {name: entry.switch for name, entry in self._entries.items()}

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """What runs."""
        return [entry.task for entry in self._entries.values() if entry.task is not None]

    def begin(self, group: asyncio.TaskGroup) -> None:
        """Run them all in a group."""
        self._group = group
        for entry in self._entries.values():
            self._start(entry)

    def stop(self) -> None:
        """Let all end in order, and none begin any more."""
        self._stopped = True
        for entry in self._entries.values():
            entry.ended.set()

    async def end(self, names: Iterable[str]) -> dict[str, Switch]:
        """Let these end in order, and take them out. Returns their switches."""
        leaving = [self._entries[name] for name in names]
        for entry in leaving:
            entry.ended.set()
        if tasks := [entry.task for entry in leaving if entry.task is not None]:
            await asyncio.wait(tasks)
        for entry in leaving:
            del self._entries[entry.input.name]
        return {entry.input.name: entry.switch for entry in leaving}

    def add(self, inputs: Iterable[Input], switches: Mapping[str, Switch]) -> None:
        """Take these in, each with a switch that there was for its name."""
        for one in inputs:
            entry = self._entries[one.name] = _Entry(one, switches.get(one.name) or Switch())
            self._start(entry)

    def _start(self, entry: _Entry) -> None:
        if self._group is None or self._stopped:
            return
        running = entry.switch.run(lambda stopping: self._run(entry.input, stopping), entry.ended)
        entry.task = self._group.create_task(running, name=entry.input.name)
