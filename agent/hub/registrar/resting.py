"""Which classes of a leaf need no source for now. Pure.

A leaf says which classes are idle. Without a source no heartbeat crosses its link; the first reading has the
leaf announce that the class is not idle, and the source is added again.

To add it nats-server reads the aggregate back to the newest message of that source, and the aggregate takes
nothing in meanwhile: 35 microseconds a message, whosever it is (2.15.1, two cores under load 5). So a class
rests only while that is little, but over a link that is paid for by the byte.
"""

from __future__ import annotations

from typing import Final

from agent.contract import Announce, ClassAnswer
from agent.hub.registrar.records import SLOWEST, ClassRecord, LeafRecord
from agent.jetstream import StreamInfo

RESTING = "resting"
"""The state of a class whose source was dropped because nothing comes of it."""

MOST_READ: Final = 20_000
"""Messages that may be read when the source of a class is added again, by then when it goes to rest."""
TOO_FAR: Final = 3 * MOST_READ
"""More than so many end a rest before its class has a reading."""


def awake(announce: Announce, known: LeafRecord | None) -> list[str]:
    """The classes that need their source. One that is not announced any more is among them: its leaf does
    not say what has come into its stream since, such as the last record of its ledger."""
    records = known.classes if known is not None else {}
    needed = [
        cls
        for cls, state in announce.classes.items()
        if not state.idle or announce.repairs or cls not in records or records[cls].epoch != state.epoch
    ]
    return needed + [cls for cls in records if cls not in announce.classes]


def may_rest(announce: Announce, cls: str, answer: ClassAnswer) -> bool:
    """Whether an idle class may rest: it flows, and both sides agree that the hub holds all of it."""
    state = announce.classes[cls]
    agrees = answer.agreed is not False and answer.certain and answer.fallback is None
    is_whole = answer.state == "flowing" and answer.cursor == state.last
    return state.idle and not announce.repairs and agrees and is_whole


def is_far(announce: Announce, record: ClassRecord, info: StreamInfo, most: int = MOST_READ) -> bool:
    """Whether more messages than `most` are read when the source of a class is added again to an aggregate as
    it is. A leaf that announces itself as rarely as over a `thin` link rests all the same."""
    newest = 0 if record.held is None else record.held.hub_seq
    is_thin = announce.every is not None and announce.every >= SLOWEST
    return not is_thin and min(info.messages, info.last - newest) > most
