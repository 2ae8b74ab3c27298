"""Shows each class's link state with one sentence, equal in log, `/status` and `petiole status`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

import structlog
from msgspec import Struct

from agent import contract
from agent.base.metrics import Metrics
from agent.config import StreamClass
from agent.jetstream import StreamInfo
from agent.leaf.events import Events, StreamSeen

log = structlog.get_logger("link")


class LinkState(StrEnum):
    """The link state of a class by severity; values are metric labels."""

    FLOWING = "flowing"
    IN_TURN = "in_turn"
    COMPARING = "comparing"
    PAUSED = "paused"
    CLOSED = "closed"
    UNVERIFIED = "unverified"
    REPAIRING = "repairing"
    POSTPONED = "postponed"
    FULL = "full"
    CAPPED = "capped"
    DOWN = "down"
    NOT_ARRIVING = "not_arriving"
    DISCARDED = "discarded"
    UNHEARD = "unheard"
    STUCK = "stuck"
    CONTESTED = "contested"
    REFUSED = "refused"
    AWAY = "away"


SENTENCES: Final = {
    LinkState.FLOWING: "data flows, and leaf and hub agree on what the hub holds",
    LinkState.IN_TURN: "this class waits until class {detail}, which goes first, has caught up",
    LinkState.COMPARING: "the link is up; leaf and hub compare what they hold before data flows",
    LinkState.PAUSED: "the link is paused by a command; readings are kept here until it is resumed",
    LinkState.CLOSED: "{detail}; readings are kept here",
    LinkState.UNVERIFIED: "the link is up, but the hub's registrar does not answer: data flows unverified "
    "and is compared once the registrar answers, and what comes into a class at rest waits here until then; "
    "see whether `petiole run` runs on the hub",
    LinkState.REPAIRING: "{detail}; a new epoch of the link begins where both sides agree",
    LinkState.POSTPONED: "{detail}; a new epoch is due and waits: there is at most one in 30 s",
    LinkState.FULL: "the hub's stream is full: readings wait here and nothing is lost; commit and purge on "
    "the hub (run ingest), or give its stream more room",
    LinkState.CAPPED: "this domain has sent as much as the hub allows it in an hour: readings wait here, "
    "nothing is lost, and the flow resumes by itself",
    LinkState.DOWN: "the link to the hub is down{detail}: readings are kept here as long as there is room, "
    "and flow when it is up again",
    LinkState.NOT_ARRIVING: "bytes cross and no message arrives: {detail}; send smaller messages "
    "(publish.batch_bytes, smaller bodies), or give the line longer windows",
    LinkState.DISCARDED: "messages {detail} left the stream of this leaf before the hub had them: it was "
    "full and its class discards the oldest, or they were purged or deleted by hand; the audit names what is "
    "missing",
    LinkState.UNHEARD: "the link is up, but the hub takes nothing from this class: its source is missing, or "
    "the hub's user of this leaf lacks a permission: {detail}",
    LinkState.STUCK: "the flow has stopped: the hub's acknowledgements do not arrive: {detail}",
    LinkState.CONTESTED: "another machine announces this domain too: a domain belongs to one machine; stop "
    "the other one, or give it a domain of its own",
    LinkState.REFUSED: "the hub refuses this leaf: {detail}",
    LinkState.AWAY: "the local NATS server cannot be used: {detail}",
}
ORDINARY: Final = frozenset(
    {LinkState.FLOWING, LinkState.IN_TURN, LinkState.COMPARING, LinkState.PAUSED, LinkState.CLOSED}
)
"""States without need for attention."""
PATIENT: Final = frozenset(
    {LinkState.DOWN, LinkState.REPAIRING, LinkState.POSTPONED, LinkState.CAPPED, LinkState.UNVERIFIED}
)
"""Faults that end by themselves or elsewhere."""


def sentence(state: LinkState, detail: str = "") -> str:
    """Return a state's sentence with `detail`."""
    return SENTENCES[state].format(detail=detail)


def worst(states: list[LinkState]) -> LinkState:
    """Return the most severe of at least one state."""
    severity = list(LinkState)
    return max(states, key=severity.index)


def hint(state: LinkState, domain: str, cls: str) -> str:
    """Return what to add on the hub for states with invisible cause, else ""."""
    stream = contract.leaf_stream(domain, cls)
    if state is LinkState.UNHEARD:
        return (
            f"publish {contract.deliver_subject(domain, cls, '*')}, $JSC.R.* and $JSC.R.{domain}.>, "
            f"subscribe {contract.api_prefix(domain)}.CONSUMER.RESET.{stream}.* and $JSC.R.*"
        )
    if state is LinkState.STUCK:
        return f"the hub's user of this leaf needs subscribe $JS.FC.{stream}.>"
    return ""


TRIM_ABOVE: Final = 0.8
"""Fill level from which a class is trimmed."""


class ClassLinkStatus(Struct):
    state: LinkState
    sentence: str
    confirmed: int = 0
    """Sequence complete at the hub."""
    last: int = 0
    hub_stream: str = ""
    message_bytes: float = 0.0
    """Mean size of the stream's messages."""
    not_arriving: str = ""
    """Message that did not arrive over several links, "" if none."""
    crowded: bool = False
    """Whether to trim confirmed messages."""


class LinkStatus:
    """All classes of a leaf. Emits `StreamSeen`; `short_of_room` tells of a nearly full disk."""

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
        """The hub's sync interval; 0 for before acks or unknown."""
        self.clock_ahead: float | None = None
        """This clock's lead over the hub's in seconds, or None."""
        self.hub_max_payload = 0
        """The hub's message limit, 0 if unknown."""
        self.sent_bytes = 0
        """Bytes given to the link since the agent started."""
        self.arrived_bytes = 0.0
        """Bytes of messages that the hub acknowledged for the first time since then."""
        first = sentence(LinkState.AWAY, "it has not answered yet")
        self.classes = {cls: ClassLinkStatus(LinkState.AWAY, first) for cls in classes}
        for cls in classes:
            metrics.link_state.labels(cls, LinkState.AWAY.value).set(1)

    @property
    def state(self) -> LinkState:
        """The most severe state."""
        return worst([link.state for link in self.classes.values()])

    @property
    def sentence(self) -> str:
        """Its sentence."""
        return next(link.sentence for link in self.classes.values() if link.state is self.state)

    def show(self, cls: str, state: LinkState, detail: str = "") -> None:
        """Set a class's state; logs a changed sentence."""
        link = self.classes[cls]
        text = sentence(state, detail or hint(state, self._domain, cls))
        if link.sentence == text:
            return
        say = log.info if state in ORDINARY else log.warning
        say("link", **{"class": cls}, state=state.value, sentence=text)
        self._metrics.link_state.labels(cls, link.state.value).set(0)
        self._metrics.link_state.labels(cls, state.value).set(1)
        link.state, link.sentence = state, text

    def count_sent(self, sent: int) -> None:
        """Count bytes given to the link."""
        self.sent_bytes += sent
        self._metrics.link_sent.inc(sent)

    def count_arrived(self, cls: str, messages: int) -> None:
        """Count messages of a class that the hub acknowledged for the first time."""
        arrived = messages * self.classes[cls].message_bytes
        self.arrived_bytes += arrived
        self._metrics.link_arrived.labels(cls).inc(arrived)

    def count(self, cls: str, info: StreamInfo) -> None:
        """Set a stream's metrics."""
        link = self.classes[cls]
        link.last = info.last
        link.message_bytes = info.bytes / info.messages if info.messages else 0.0
        link.crowded = info.bytes > TRIM_ABOVE * self._limits[cls].max_bytes or self._short_of_room()
        self._metrics.backlog.labels(cls).set(max(0, info.last - max(link.confirmed, info.first - 1)))
        self._metrics.stream_bytes.labels(cls).set(info.bytes)
        self._metrics.confirmed.labels(cls).set(link.confirmed)
        self._events.emit(StreamSeen(cls, info, link.confirmed))
