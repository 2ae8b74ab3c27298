"""The link as it is shown in the log (when it changes), in `/status` and in the metrics: for each class its
state and sentence, and up to where the hub holds everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from agent.base.metrics import Metrics
from agent.config import StreamClass
from agent.jetstream import StreamInfo
from agent.leaf.events import Events, StreamSeen
from agent.leaf.link.states import ORDINARY, LinkState, hint, sentence, worst

TRIM_ABOVE: Final = 0.8
"""Of what its stream may hold, a class is trimmed above."""

log = structlog.get_logger("link")


@dataclass(slots=True)
class ClassLinkStatus:
    """The link of one class."""

    state: LinkState
    sentence: str
    confirmed: int = 0
    """The leaf sequence up to which the hub holds everything."""
    last: int = 0
    hub_stream: str = ""
    crowded: bool = False
    """Whether the stream is so full that what is confirmed is trimmed."""


def is_crowded(info: StreamInfo, max_bytes: int) -> bool:
    """Whether a stream is so full that it is trimmed."""
    return info.bytes > TRIM_ABOVE * max_bytes


class LinkStatus:
    """All classes of a leaf. Emits `StreamSeen` at each look at a stream; `short_of_room`
    returns whether the disk of the streams is nearly full."""

    def __init__(
        self,
        domain: str,
        classes: Mapping[str, StreamClass],
        metrics: Metrics,
        events: Events,
        short_of_room: Callable[[], bool],
    ) -> None:
        self._domain, self._limits, self._metrics, self._events = domain, classes, metrics, events
        self._short_of_room = short_of_room
        self.hub_sync_seconds = 0.0
        self.hub_max_payload = 0
        """How often the hub's server syncs its disk; 0: before it acknowledges, or the hub does not say."""
        first = sentence(LinkState.AWAY, "it has not answered yet")
        self.classes = {cls: ClassLinkStatus(LinkState.AWAY, first) for cls in classes}
        for cls in classes:
            metrics.link_state.labels(cls, LinkState.AWAY.value).set(1)

    @property
    def state(self) -> LinkState:
        """The most severe state of all classes."""
        return worst([link.state for link in self.classes.values()])

    @property
    def sentence(self) -> str:
        """The sentence of the most severe state."""
        return next(link.sentence for link in self.classes.values() if link.state is self.state)

    def show(self, cls: str, state: LinkState, detail: str = "") -> None:
        """Show the state of a class; logged if its sentence has changed."""
        link = self.classes[cls]
        text = sentence(state, detail or hint(state, self._domain, cls))
        if link.sentence == text:
            return
        say = log.info if state in ORDINARY else log.warning
        say("link", **{"class": cls}, state=state.value, sentence=text)
        self._metrics.link_state.labels(cls, link.state.value).set(0)
        self._metrics.link_state.labels(cls, state.value).set(1)
        link.state, link.sentence = state, text

    def count(self, cls: str, info: StreamInfo) -> None:
        """Show what the stream of a class holds."""
        link = self.classes[cls]
        link.last = info.last
        link.crowded = is_crowded(info, self._limits[cls].max_bytes) or self._short_of_room()
        self._metrics.backlog.labels(cls).set(max(0, info.last - max(link.confirmed, info.first - 1)))
        self._metrics.stream_bytes.labels(cls).set(info.bytes)
        self._metrics.confirmed.labels(cls).set(link.confirmed)
        self._events.emit(StreamSeen(cls, info, link.confirmed))
