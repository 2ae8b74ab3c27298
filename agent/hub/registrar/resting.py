"""Which classes of a leaf need no source for now. Pure.

A leaf says which classes are idle. Without a source no heartbeat crosses its link; the first reading has the
leaf announce that the class is not idle, and the source is added again.
"""

from __future__ import annotations

from agent.contract import Announce, ClassAnswer
from agent.hub.registrar.records import LeafRecord

RESTING = "resting"
"""The state of a class whose source was dropped because nothing comes of it."""


def awake(announce: Announce, known: LeafRecord | None) -> list[str]:
    """The classes that need their source."""
    records = known.classes if known is not None else {}
    return [
        cls
        for cls, state in announce.classes.items()
        if not state.idle or announce.repairs or cls not in records or records[cls].epoch != state.epoch
    ]


def may_rest(announce: Announce, cls: str, answer: ClassAnswer) -> bool:
    """Whether an idle class may rest: it flows, and both sides agree that the hub holds all of it."""
    state = announce.classes[cls]
    agrees = answer.agreed is not False and answer.certain and answer.fallback is None
    is_whole = answer.state == "flowing" and answer.cursor == state.last
    return state.idle and not announce.repairs and agrees and is_whole
