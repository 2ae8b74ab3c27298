"""The link as it is shown: for each class its state and sentence, and how far the hub is. The same in the log
(when it changes), in `/status` and in the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from agent.base.metrics import Metrics
from agent.config import StreamClass
from agent.jetstream import StreamInfo
from agent.leaf.link.act import is_crowded
from agent.leaf.link.states import ORDINARY, LinkState, hint, sentence, worst

log = structlog.get_logger("link")


@dataclass(slots=True)
class ClassLinkStatus:
    """The link of one class. `confirmed` is the leaf sequence up to which the hub holds everything; `crowded`
    that the stream is so full that this much is trimmed."""

    state: LinkState
    sentence: str
    confirmed: int = 0
    last: int = 0
    hub_stream: str = ""
    crowded: bool = False


class LinkStatus:
    """All classes of a leaf. `watch(cls, info, confirmed)` is told what each look at a stream shows;
    `short_of_room` says whether the disk of the streams has hardly any left."""

    def __init__(
        self,
        domain: str,
        classes: Mapping[str, StreamClass],
        metrics: Metrics,
        watch: Callable[[str, StreamInfo, int], None],
        short_of_room: Callable[[], bool],
    ) -> None:
        self._domain, self._limits, self._metrics, self._watch = domain, classes, metrics, watch
        self._short_of_room = short_of_room
        first = sentence(LinkState.AWAY, "it has not answered yet")
        self.classes = {cls: ClassLinkStatus(LinkState.AWAY, first) for cls in classes}
        for cls in classes:
            metrics.link_state.labels(cls, LinkState.AWAY.value).set(1)

    @property
    def state(self) -> LinkState:
        """The gravest state of all classes."""
        return worst([one.state for one in self.classes.values()])

    @property
    def sentence(self) -> str:
        """The sentence of the gravest state."""
        return next(one.sentence for one in self.classes.values() if one.state is self.state)

    def show(self, cls: str, state: LinkState, detail: str = "") -> None:
        """A class is in this state; said where its sentence is another one than before."""
        one = self.classes[cls]
        text = sentence(state, detail or hint(state, self._domain, cls))
        if one.sentence == text:
            return
        say = log.info if state in ORDINARY else log.warning
        say("link", **{"class": cls}, state=state.value, sentence=text)
        self._metrics.link_state.labels(cls, one.state.value).set(0)
        self._metrics.link_state.labels(cls, state.value).set(1)
        one.state, one.sentence = state, text

    def count(self, cls: str, info: StreamInfo) -> None:
        """What a look at the stream of a class shows."""
        one = self.classes[cls]
        one.last = info.last
        one.crowded = is_crowded(info, self._limits[cls].max_bytes) or self._short_of_room()
        self._metrics.backlog.labels(cls).set(max(0, info.last - max(one.confirmed, info.first - 1)))
        self._metrics.stream_bytes.labels(cls).set(info.bytes)
        self._metrics.confirmed.labels(cls).set(one.confirmed)
        self._watch(cls, info, one.confirmed)
