"""The devices of a case, and what they noted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from agent.contract import DEFAULT_CLASS
from agent.demo.plan import Member
from tests.faults.oracle.journal import Journal, Level, Made, Sent
from tests.faults.oracle.numbered import Series
from tests.faults.world.devices import ANSWER_SECONDS, Device, DirectDevice, HttpDevice, Notes


class Load:
    """The devices of a case, and what they noted."""

    def __init__(self) -> None:
        self.journal, self.notes = Journal(), Notes()
        self.devices: list[Device] = []

    def over_http(
        self, member: Member, name: str, level: Level = Level.STORED, *, size: int = 10, pace: float = 0.05
    ) -> None:
        """Start a device that posts."""
        self.start(HttpDevice(member, *self.series(member, name, level), self.notes, size, pace))

    def direct(self, member: Member, name: str, *, pace: float = 0.1) -> None:
        """Start a device that publishes to the server."""
        self.start(DirectDevice(member, *self.series(member, name), self.notes, 1, pace))

    def series(
        self,
        member: Member,
        name: str,
        level: Level = Level.STORED,
        cls: str = DEFAULT_CLASS,
        made: Made | None = None,
    ) -> tuple[Series, Sent]:
        """What a new device of a leaf numbers its readings in; `cls` is where they end, `made` what becomes
        of them on the way."""
        one = Series(member.domain, cls, name, 1)
        return one, self.journal.of(one, level, made)

    def start(self, device: Device) -> None:
        """Let a device send until the end of the load."""
        self.devices.append(device)
        device.start()

    def flows(self, requests: int = 3, seconds: float = 60.0) -> None:
        """Return when every device that goes on has had so many more requests acknowledged."""
        going = [one for one in self.devices if not one.ends]
        wanted = {one: one.sent.acknowledged + requests * one.size for one in going}
        deadline = time.monotonic() + seconds
        for device, count in wanted.items():
            while device.sent.acknowledged < count:
                assert time.monotonic() < deadline, f"{device.name} is not answered for {seconds:.0f} s"
                time.sleep(0.05)

    def stop(self, seconds: float = 60.0) -> list[str]:
        """End all devices once what they sent is acknowledged; the names of those that had to give up."""
        for one in self.devices:
            one.end()
        deadline = time.monotonic() + seconds
        for one in self.devices:
            one.join(max(0.0, deadline - time.monotonic()))
        stuck = [one for one in self.devices if one.is_alive()]
        for one in stuck:
            one.give_up()
        for one in stuck:
            one.join(ANSWER_SECONDS + DirectDevice.patience)
        return [one.name for one in stuck]


@contextmanager
def load() -> Iterator[Load]:
    """A load whose devices end with the context."""
    one = Load()
    try:
        yield one
    finally:
        for device in one.devices:
            device.give_up()
        one.stop()
