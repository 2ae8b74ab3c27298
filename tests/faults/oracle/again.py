"""How many messages the hub was sent though it had them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

SECONDS: Final = 25.0
"""After a store was restored at most so much as was sent in so long comes again: an epoch begins after the
newest checkpoint that is held. A hub that syncs at intervals agrees on what was newest at the announcement
before the last one, up to twice ten seconds ago, and a restart lasts some seconds."""
COLUMNS: Final = (
    *("stream", "created", "message_id"),
    *("source_stream", "source_identity", "source_seq", "digest"),
    "arrived",
)
"""The columns of bronze that tell."""


class SentAgain(NamedTuple):
    """`messages` came to a stream of the hub that held them; `bound` is how many come in `SECONDS`, by all
    that came at all and the time from the first to the last of them."""

    messages: int
    bound: int

    def __str__(self) -> str:
        return f"{self.messages} messages came again, {self.bound} are sent in {SECONDS:.0f} s"


def sent_again(rows: Iterable[Mapping[str, Any]]) -> SentAgain:
    """From rows of bronze with `COLUMNS`. A stream of the hub that was made again held nothing, so it is
    another one."""
    count, first = 0, dict[tuple[object, ...], datetime]()
    for row in rows:
        own = row["message_id"] or tuple(row[name] for name in COLUMNS[3:7])
        message = row["stream"], row["created"], own
        count += message in first
        first[message] = min(row["arrived"], first.get(message, row["arrived"]))
    if not first:
        return SentAgain(0, 0)
    seconds = (max(first.values()) - min(first.values())).total_seconds()
    return SentAgain(count, round(len(first) * min(1.0, SECONDS / seconds)) if seconds else len(first))
