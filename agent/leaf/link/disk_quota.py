"""Which classes may still be stored when the disk runs short. What the classes that go first may still need
is reserved for them, so that bulk cannot push out critical.

It holds back what comes through the agent; what a device publishes into a stream itself is bounded only by
that stream's `max_bytes`.
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
    """The classes of a leaf. `held` returns the bytes of a class's stream at the last look, `room` what is
    known of the disk that all streams share."""

    def __init__(
        self,
        classes: Mapping[str, StreamClass],
        held: Callable[[str], float],
        room: Callable[[], Room | None],
    ) -> None:
        self._classes, self._held, self._room = classes, held, room
        self._judged: Room | None = None
        self._refused: dict[str, str] = {}

    def refusal(self, cls: str) -> str | None:
        """Why a class is not stored now, None if it is."""
        room = self._room()
        if room is not self._judged:
            self._judged = room
            self._judge(room)
        return self._refused.get(cls)

    @property
    def short(self) -> bool:
        """Whether a class is held back."""
        return bool(self._refused)

    def _judge(self, room: Room | None) -> None:
        before, self._refused = self._refused, {}
        for name, cls in self._classes.items():
            if room is None or not (first := self._before(cls)):
                continue
            needed = sum(max(0, class_.max_bytes - int(self._held(class_.name))) for class_ in first)
            # Files are larger than what they hold, and exist twice for a moment; a class that is held back
            # resumes only with more room, so that it does not flap.
            spare = room.reserve * (2 if name in before else 1)
            if room.free - room.reserve < needed + spare:
                self._refused[name] = _sentence(name, first, needed)
        for name in self._refused.keys() - before.keys():
            log.warning("class held back", **{"class": name}, state=self._refused[name])
        for name in before.keys() - self._refused.keys():
            log.info("class stored again", **{"class": name})

    def _before(self, cls: StreamClass) -> list[StreamClass]:
        return [class_ for class_ in self._classes.values() if class_.priority < cls.priority]


def _sentence(name: str, first: list[StreamClass], needed: int) -> str:
    names = ", ".join(sorted(class_.name for class_ in first))
    return (
        f"the disk of the server's store is short: the {needed / _MIB:.0f} MiB that class {names} may still "
        f"need are reserved for it; class {name} is stored again when there is more room: free some, or "
        "reduce max_bytes of the others"
    )
