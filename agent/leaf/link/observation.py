"""What the link keeper has seen of one class at one moment: plain values, on which alone it decides.

Times are monotonic seconds; sequences are those of the leaf's stream.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkSeen:
    """The connection of the leaf's server to its hub: whether it is `up`, since when, and a `key` that
    another connection does not share. `closed` is a sentence where the link is down because it shall be."""

    up: bool
    since: float
    key: str = ""
    closed: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerSeen:
    """The link consumer: `start` is where its epoch begins, `paused_for` the seconds of pause that are left,
    `bound` whether the hub listens, `delivered` and `floor` (the ack floor) sequences, `in_flight` how many
    messages are delivered and not acknowledged, `pending` how many are not delivered."""

    start: int
    paused_for: float
    bound: bool
    delivered: int
    floor: int
    in_flight: int
    pending: int


@dataclass(frozen=True, slots=True)
class HubComparison:
    """The hub's answer to one announcement, beside what the leaf holds.

    `asked` is when it was asked, over the link of `link_key`, for the link of `epoch`. `floor` and `start`
    are the consumer's as they were before the question, so that a healthy `cursor` is never below; `first`
    and `last` are the stream's after the answer. `same` says whether the leaf's message at the cursor is the
    hub's (None where that cannot be told: nothing there, or no id on either side); `checkpoint` is the leaf
    sequence of the agreed checkpoint (0: there is none), `own` whether the leaf still holds that message, and
    `agreed` whether the hub does (None: nobody can tell). `certain` is False where the hub says that its
    cursor may be too low. `word` is the hub's own word of state. `fallback` is the leaf sequence up to which
    a hub that lacks something still holds all, 0 where it does not tell or the leaf holds another message.
    """

    asked: float
    link_key: str
    epoch: str
    start: int
    floor: int
    first: int
    last: int
    cursor: int
    same: bool | None
    checkpoint: int
    own: bool
    agreed: bool | None
    certain: bool
    word: str
    fallback: int = 0


@dataclass(frozen=True, slots=True)
class LinkObservation:
    """Everything about one class. `consumer` is None where the link consumer is gone. `refused` is the hub's
    sentence when its newest answer refused this leaf; `silent_since` is when it was first asked in vain since
    its last answer, None while it answers. `held_until` is until when a person wants the link paused (0:
    nobody does), `first_in_turn` the class that goes before this one. A new epoch may begin at
    `may_repair_at`."""

    now: float
    epoch: str
    link: LinkSeen
    consumer: ConsumerSeen | None
    compared: HubComparison | None = None
    refused: str | None = None
    silent_since: float | None = None
    held_until: float = 0.0
    first_in_turn: str = ""
    may_repair_at: float = 0.0
