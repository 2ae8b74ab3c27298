"""What the server says of a stream: its incarnation, its first and last sequence, where its sources are."""

from __future__ import annotations

from dataclasses import dataclass, field

from hub_jobs.source.connection import Connection
from hub_jobs.source.errors import WireError
from hub_jobs.source.lineage import source_index


@dataclass(frozen=True)
class StreamInfo:
    """What a range is planned on. An empty stream has `first_seq` one above `last_seq`, or both 0."""

    name: str
    created: str
    """The text the server sent. It names one incarnation of the stream."""
    first_seq: int
    last_seq: int
    messages: int
    num_deleted: int
    bytes: int
    source_index: dict[str, str] = field(default_factory=dict)
    """The domain of each source by its index in `Nats-Stream-Source`, less the consumer (`SourceKey.origin`).
    """
    domain: str = ""
    """The JetStream domain that holds the stream; empty when the server has none."""


def stream_info(conn: Connection, stream: str) -> StreamInfo:
    """Ask for a stream's state.

    Raises ApiError (err_code 10059 when there is no such stream) and what `Connection.request` raises.
    """
    answer = conn.api(f"STREAM.INFO.{stream}")
    try:
        config, state = answer["config"], answer["state"]
        domain = str(answer.get("domain", ""))
        return StreamInfo(
            name=config["name"],
            created=answer["created"],
            first_seq=state["first_seq"],
            last_seq=state["last_seq"],
            messages=state["messages"],
            num_deleted=state.get("num_deleted", 0),
            bytes=state["bytes"],
            source_index=source_index(config.get("sources") or [], domain),
            domain=domain,
        )
    except (KeyError, TypeError) as error:
        raise WireError(f"STREAM.INFO.{stream}: the answer lacks {error}") from error


def deleted_sequences(conn: Connection, stream: str) -> tuple[int, list[int]]:
    """The stream's first sequence and, ascending, every sequence after it that was deleted."""
    state = conn.api(f"STREAM.INFO.{stream}", {"deleted_details": True})["state"]
    return state["first_seq"], sorted(state.get("deleted") or [])
