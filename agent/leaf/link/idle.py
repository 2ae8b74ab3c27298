"""Which classes are idle: nothing has come into them for a while. The hub may drop the source of an idle
class, whose heartbeats are most of what an idle link costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent.base.wait import loop_time


@dataclass(slots=True)
class _Rest:
    after: float | None
    place: tuple[object, ...] | None = None
    since: float = 0.0


class IdleClasses:
    """A class is idle after so many seconds, None: never. Calls `ended` as soon as an idle class is idle no
    more; `now` returns monotonic seconds."""

    def __init__(
        self,
        after: Mapping[str, float | None],
        ended: Callable[[], None],
        now: Callable[[], float] = loop_time,
    ) -> None:
        self._ended, self._now = ended, now
        self._rests = {cls: _Rest(seconds) for cls, seconds in after.items()}

    def seen(self, cls: str, *place: object) -> None:
        """A look shows where the link of a class is."""
        if self._rests[cls].place != place:
            self.moved(cls)
            self._rests[cls].place = place

    def moved(self, cls: str) -> None:
        """Something came into a class, or its link changed."""
        was_idle = self.is_idle(cls)
        self._rests[cls].since = self._now()
        if was_idle:
            self._ended()

    def is_idle(self, cls: str) -> bool:
        """Whether nothing has moved for long enough."""
        rest = self._rests[cls]
        return rest.after is not None and rest.place is not None and self._now() - rest.since >= rest.after

    @property
    def any_idle(self) -> bool:
        """Whether a class is idle, whose first reading is to be noticed soon."""
        return any(self.is_idle(cls) for cls in self._rests)
