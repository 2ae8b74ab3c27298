"""What a commit of bronze says of sequences that the stream no longer had, and why."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Final

from hub_jobs.source.wire import StreamInfo
from hub_jobs.tables.stream_history import StreamHistory

GAPS_NOTE: Final = "petiole.gaps"
"""Of a commit of bronze: the sequences that were gone, as ranges."""

WHY_NOTE: Final = "petiole.gaps.why"
"""And of which stream and incarnation, and the reason that the stream's limits gave then."""

_NEARLY_FULL: Final = 0.9


class GapReason(StrEnum):
    """Why sequences never came."""

    DISCARDED = "discarded"
    EXPIRED = "expired"
    LIMIT = "hub limit"
    NOT_SOURCED = "not sourced"
    REMOVED = "removed"
    STORE_LOST = "store lost"
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"


def limits_say(info: StreamInfo) -> GapReason:
    """Why messages are gone from a stream of the hub, by the limits that it has now."""
    limits = info.limits
    full = 0 < limits.max_messages <= info.messages or 0 < limits.max_bytes * _NEARLY_FULL <= info.bytes
    by_limit = limits.max_per_subject > 0 or (limits.discards_old and full)
    by_age = limits.max_age_ns > 0
    if by_limit == by_age:
        return GapReason.UNKNOWN
    return GapReason.LIMIT if by_limit else GapReason.EXPIRED


def why_note(one: StreamHistory, info: StreamInfo) -> str:
    """The note about gaps that were found while the stream was so."""
    return json.dumps([*one.history, limits_say(info)])
