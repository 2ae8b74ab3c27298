"""Which classes may still be stored where the disk runs short: pure but for the log. What the classes that go
first may still need is kept for them, so that bulk cannot push out critical.

It holds back what comes through the agent; what a device publishes into a stream of its own accord is bounded
by that stream's `max_bytes` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import structlog

from agent.base.files import Room
from agent.config import StreamClass

_MIB: Final = 2**20

log = structlog.get_logger("server")


class DiskQuota:
    """The classes of a leaf. `held` gives the bytes of a class's stream as they were last seen, `room` what
    is known of the disk on which all streams are."""

    def __init__(
        self,
        classes: Mapping[str, StreamClass],
        held: Callable[[str], float],
        room: Callable[[], Room | None],
    ) -> None:
        self._classes, self._held, self._room = classes, held, room
        self._seen: Room | None = None
        self._refused: dict[str, str] = {}

    def refusal(self, cls: str) -> str | None:
        """Why nothing of a class is taken in now, None where it is."""
        room = self._room()
        if room is not self._seen:
            self._seen = room
            self._judge(room)
        return self._refused.get(cls)

    @property
    def short(self) -> bool:
        """Whether some class is held back."""
        return bool(self._refused)

    def _judge(self, room: Room | None) -> None:
        before, self._refused = self._refused, {}
        for name, cls in self._classes.items():
            if room is None or not (first := self._before(cls)):
                continue
            needed = sum(max(0, one.max_bytes - int(self._held(one.name))) for one in first)
            # Files are larger than what they hold, and briefly there twice; what is held back begins again
            # with some more room to spare, so that it does not flap.
            spare = room.reserve * (2 if name in before else 1)
            if room.free - room.reserve < needed + spare:
                self._refused[name] = _sentence(name, first, needed)
        for name in self._refused.keys() - before.keys():
            log.warning("a class is held back", **{"class": name}, state=self._refused[name])
        for name in before.keys() - self._refused.keys():
            log.info("there is room again", **{"class": name})

    def _before(self, cls: StreamClass) -> list[StreamClass]:
        return [one for one in self._classes.values() if one.priority < cls.priority]


def _sentence(name: str, first: list[StreamClass], needed: int) -> str:
    names = ", ".join(sorted(one.name for one in first))
    return (
        f"the disk of the server's store is short: the {needed / _MIB:.0f} MiB that class {names} may still "
        f"need are kept for it; class {name} is taken in again when there is more: free some room there, or "
        "make max_bytes of the other smaller"
    )
