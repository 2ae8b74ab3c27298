"""Queries streams and parses where records were sourced from (header `Nats-Stream-Source`)."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from agent.contract import MADE_METADATA, SYNC_METADATA, api_prefix, leaf_stream
from hub_jobs.source.binary import Numbers
from hub_jobs.source.connection import Connection
from hub_jobs.source.protocol import WireError

SOURCE_HEADER: Final = b"Nats-Stream-Source"

_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

_CONSUMER_MARK: Final = ":C="

SOURCE_FIELDS: Final = 6

SEQ_DIGITS: Final = 18

_FORMER_KNOWN: Final = 65_536
_MOMENT_IDLE_NS: Final = 10_000_000_000
_MAX_STREAMS: Final = 10_000
_NO_NUMBERS: Final = np.array([], dtype=np.int64)


@dataclass(frozen=True)
class StreamLimits:
    """A stream's limits; 0 for none. Without `discards_old` a full stream refuses new messages."""

    max_age_ns: int = 0
    max_messages: int = 0
    max_bytes: int = 0
    max_per_subject: int = 0
    discards_old: bool = False

    @property
    def are_any(self) -> bool:
        """Whether the stream drops messages by itself."""
        by_size = self.discards_old and (self.max_messages or self.max_bytes)
        return bool(self.max_age_ns or self.max_per_subject or by_size)


@dataclass(frozen=True)
class HubStream:
    """The state for planning a range. An empty stream has `first_seq` one above `last_seq`, or both 0."""

    name: str
    created: str
    """The server's text; it names one history."""
    first_seq: int
    last_seq: int
    messages: int
    num_deleted: int
    bytes: int
    source_index: dict[str, str] = field(default_factory=dict)
    """The domain of each source by index without consumer (`origin`)."""
    made: dict[tuple[str, str], str] = field(default_factory=dict)
    """The first identity of a recreated leaf stream, by stream and present identity (`MADE_METADATA`)."""
    domain: str = ""
    """The JetStream domain, empty if none."""
    limits: StreamLimits = StreamLimits()
    sync_seconds: float = 0.0
    """Interval of disk syncs; 0 when synced before each ack."""


def stream_info(conn: Connection, stream: str) -> HubStream:
    """Return a stream's state.

    Raises ApiError (err_code 10059 for an unknown stream) and as `Connection.request`.
    """
    answer = conn.api(f"STREAM.INFO.{stream}")
    try:
        config, state = answer["config"], answer["state"]
        domain = str(answer.get("domain", ""))
        return HubStream(
            name=config["name"],
            created=answer["created"],
            first_seq=state["first_seq"],
            last_seq=state["last_seq"],
            messages=state["messages"],
            num_deleted=state.get("num_deleted", 0),
            bytes=state["bytes"],
            source_index=source_index(config.get("sources") or [], domain),
            made=made_again(config.get("metadata") or {}),
            domain=domain,
            limits=_limits(config),
            sync_seconds=float((config.get("metadata") or {}).get(SYNC_METADATA, 0.0)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"STREAM.INFO.{stream}: the answer lacks {error}") from error


def _limits(config: Mapping[str, Any]) -> StreamLimits:
    def most(name: str) -> int:
        return max(int(config.get(name) or 0), 0)  # the server writes -1 for none

    return StreamLimits(
        max_age_ns=most("max_age"),
        max_messages=most("max_msgs"),
        max_bytes=most("max_bytes"),
        max_per_subject=most("max_msgs_per_subject"),
        discards_old=config.get("discard") == "old",
    )


class LeaderState(NamedTuple):
    """A stream's state by its leader."""

    first_seq: int
    deleted: list[int]
    """Deleted sequences after the first, ascending."""
    copies: dict[str, bool]
    """Other replicas and whether each is online; empty for streams with limits, whose replicas differ."""


def leader_state(conn: Connection, stream: str) -> LeaderState:
    """Ask a stream's leader for missing sequences and replicas. Raises as `Connection.api`."""
    answer = conn.api(f"STREAM.INFO.{stream}", {"deleted_details": True})
    state, config = answer["state"], answer["config"]
    replicas = (answer.get("cluster") or {}).get("replicas") or []
    if _limits(config).are_any or config.get("allow_msg_ttl"):
        replicas = []
    copies = {replica["name"]: not replica.get("offline") for replica in replicas}
    return LeaderState(state["first_seq"], sorted(state.get("deleted") or []), copies)


def stream_names(conn: Connection) -> list[str]:
    """Return all stream names, sorted. Raises as `Connection.api`, and WireError above 10,000 streams."""
    names: list[str] = []
    while True:
        answer = conn.api("STREAM.NAMES", {"offset": len(names)})
        page = answer.get("streams") or []
        names += page
        if not page or len(names) >= answer.get("total", 0):
            return sorted(set(names))
        if len(names) > _MAX_STREAMS:
            raise WireError(f"more than {_MAX_STREAMS} streams; name those to read in the option stream")


def sequence_at(conn: Connection, stream: str, moment_ns: int) -> int:
    """Return the first sequence stored from a moment (ns since 1970), or one above the last.

    A consumer starting at the moment reveals it, which needs only read permission. Assumes that the server's
    clock never went back. Raises as `Connection.api`.
    """
    seconds, rest = divmod(moment_ns, 1_000_000_000)
    name = f"moment-{secrets.token_hex(8)}"
    config = {
        "name": name,
        "deliver_policy": "by_start_time",
        "opt_start_time": f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z",
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": _MOMENT_IDLE_NS,
    }
    answer = conn.api(
        f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config, "action": "create"}
    )
    with suppress(WireError):  # it goes away by itself
        conn.api(f"CONSUMER.DELETE.{stream}.{name}")
    try:
        return int(answer["delivered"]["stream_seq"]) + 1
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"CONSUMER.CREATE.{stream}: the answer does not say where it starts") from error


@dataclass(frozen=True, slots=True)
class Columns:
    """Messages of a stream in order, by column."""

    subjects: pa.Array
    headers: pa.Array
    payloads: pa.Array
    """These three are bytes."""
    seqs: Numbers
    timestamps_ns: Numbers
    """Storage times in ns since 1970."""


def joined(pieces: Sequence[Columns]) -> Columns:
    texts = (
        pa.concat_arrays([pa.array([], pa.binary()), *(getattr(piece, name) for piece in pieces)])
        for name in ("subjects", "headers", "payloads")
    )
    numbers = (
        np.concatenate([_NO_NUMBERS, *(getattr(piece, name) for piece in pieces)])
        for name in ("seqs", "timestamps_ns")
    )
    return Columns(*texts, *numbers)


@dataclass(frozen=True, slots=True)
class SourceKey:
    """A record's place in its source stream, from `Nats-Stream-Source`.

    The value is `<index> <seq> <filters> <transforms> <subject> <identity>`. The index is the stream name,
    with `:` and a hash of the API prefix for another domain, and `:C=` and a hash of a durable consumer's
    name. The consumer changes per epoch, so a domain is found without it (server/stream.go, composeIName and
    genSourceHeader; nats-server 2.15.1). `identity` hashes the stream's creation time (empty before 2.15);
    `subject` is the original subject.
    """

    stream: str
    index: str
    seq: int
    identity: str
    subject: str


def origin(index: str) -> str:
    """Return an index without consumer, as in `HubStream.source_index`."""
    return index.partition(_CONSUMER_MARK)[0]


def domain_of(index: str, known: Mapping[str, str]) -> str | None:
    """Return a source's domain, None if unknown. `known` are the present sources (`HubStream.source_index`).

    Messages stay after their source is removed, as for a class at rest or a revoked leaf.
    """
    source = origin(index)
    return known.get(source) or _former_domain(source)


@lru_cache(_FORMER_KNOWN)
def _former_domain(origin: str) -> str | None:
    """Return the domain in a leaf stream's name if the API prefix hash matches it. The hub's server wrote
    both.
    """
    name = origin.partition(":")[0]
    domain, _, cls = name.partition("_")[2].rpartition("_")
    source = {"name": leaf_stream(domain, cls), "external": {"api": api_prefix(domain)}}
    return domain if domain and index_name(source) == origin else None


def parse_source(value: bytes) -> SourceKey:
    """Parse `Nats-Stream-Source`. Raises ValueError."""
    fields = value.decode(errors="replace").split(" ")
    if len(fields) == SOURCE_FIELDS - 1:
        fields.append("")
    if len(fields) != SOURCE_FIELDS or not fields[1].isascii() or not fields[1].isdigit():
        raise ValueError(f"not a Nats-Stream-Source value: {value[:200]!r}")
    index, seq, _, _, subject, identity = fields
    if len(seq) > SEQ_DIGITS:
        raise ValueError(f"not a sequence in a Nats-Stream-Source value: {seq[:200]!r}")
    return SourceKey(index.partition(":")[0], index, int(seq), identity, subject)


def name_hash(text: str) -> str:
    """Return the server's short name hash: eight bytes of SHA-256, each modulo 62."""
    return "".join(_DIGITS[byte % 62] for byte in hashlib.sha256(text.encode()).digest()[:8])


def index_name(source: Mapping[str, Any]) -> str:
    """Return the index of a configured source without consumer (see `origin`)."""
    api = (source.get("external") or {}).get("api")
    return f"{source['name']}:{name_hash(api)}" if api else str(source["name"])


def source_index(sources: list[Mapping[str, Any]], own_domain: str) -> dict[str, str]:
    """Return every source's domain by its index without consumer.

    Sources without `external` belong to `own_domain`. Prefixes other than `$JS.<domain>.API` are left out.
    """
    found: dict[str, str] = {}
    for source in sources:
        api = (source.get("external") or {}).get("api")
        domain = own_domain if not api else _domain_of(api)
        if domain:
            found[index_name(source)] = domain
    return found


def made_again(metadata: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """Parse `HubStream.made` from an aggregate's metadata."""
    named = (
        (*key.removeprefix(MADE_METADATA).partition("."), created)
        for key, created in metadata.items()
        if key.startswith(MADE_METADATA)
    )
    return {(stream, name_hash(made)): name_hash(created) for stream, _, made, created in named}


def _domain_of(api: str) -> str:
    parts = api.split(".")
    return parts[1] if len(parts) == 3 and parts[0] == "$JS" and parts[2] == "API" else ""
