"""The batches that have a number and whose outcome is not known."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from agent.leaf.publish.batch import Batch, count_readings


class InFlight:
    """Batches in flight by their serial, and questions about them."""

    def __init__(self) -> None:
        self._batches: dict[int, Batch] = {}
        self._progress = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        """All of them as they are now, in the order in which they were sent first."""
        return iter(list(self._batches.values()))

    def __contains__(self, batch: Batch) -> bool:
        return self._batches.get(batch.serial) is batch

    def find(self, serial: int) -> Batch | None:
        """The batch of a serial."""
        return self._batches.get(serial)

    def add(self, batch: Batch) -> None:
        """A batch is sent."""
        self._batches[batch.serial] = batch

    def remove(self, batch: Batch) -> None:
        """The outcome of a batch is known, or it goes under another number."""
        del self._batches[batch.serial]
        self._progress.set()

    def store_lost(self, cls: str) -> None:
        """The store of a class was lost: what was sent to it may be at the hub."""
        for batch in self._batches.values():
            batch.store_lost = batch.store_lost or batch.id.cls == cls

    def floor(self, cls: str) -> int | None:
        """The sequence above which those of a class may be stored, None when there is none."""
        return min((batch.floor for batch in self._batches.values() if batch.id.cls == cls), default=None)

    def holds_input(self, input_name: str) -> bool:
        """Whether a batch of an input is in flight."""
        return any(batch.input == input_name for batch in self._batches.values())

    @property
    def window_used(self) -> int:
        """How many there are but those that wait for room in a new store: other classes need not wait with
        them."""
        return sum(not batch.store_lost for batch in self._batches.values())

    @property
    def oldest_at(self) -> float | None:
        """When the one that was sent first was, None when there is none."""
        return min((batch.first_sent for batch in self._batches.values()), default=None)

    def readings(self, cls: str) -> int:
        """The readings of a class in flight, counted one by one."""
        return sum(count_readings(batch.entries) for batch in self._batches.values() if batch.id.cls == cls)

    def note_progress(self) -> None:
        """Let those look again that wait for `progress`."""
        self._progress.set()

    async def progress(self) -> None:
        """Return when a batch was removed, or something else was noted."""
        self._progress.clear()
        await self._progress.wait()
