"""What the server says of a stream: when it was created, its first and last sequence, its sources; its
records; and where a record was sourced from, as the server wrote it into the header `Nats-Stream-Source`."""

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
    """By what a stream drops messages by itself; 0 is no limit. Without `discards_old` it refuses new ones
    instead when it is full."""

    max_age_ns: int = 0
    max_messages: int = 0
    max_bytes: int = 0
    max_per_subject: int = 0
    discards_old: bool = False

    @property
    def are_any(self) -> bool:
        """Whether it drops messages by itself at all."""
        by_size = self.discards_old and (self.max_messages or self.max_bytes)
        return bool(self.max_age_ns or self.max_per_subject or by_size)


@dataclass(frozen=True)
class StreamInfo:
    """What a range is planned on. An empty stream has `first_seq` one above `last_seq`, or both 0."""

    name: str
    created: str
    """The text the server sent. It names one history of the stream."""
    first_seq: int
    last_seq: int
    messages: int
    num_deleted: int
    bytes: int
    source_index: dict[str, str] = field(default_factory=dict)
    """The domain of each source by its index in `Nats-Stream-Source`, less the consumer (`origin`)."""
    made: dict[tuple[str, str], str] = field(default_factory=dict)
    """The identity under which messages of a leaf's stream are known, by that stream and the identity which
    its server gave it when it created it anew over its messages (`MADE_METADATA`)."""
    domain: str = ""
    """The JetStream domain that holds the stream; empty when the server has none."""
    limits: StreamLimits = StreamLimits()
    sync_seconds: float = 0.0
    """How often the server syncs the stream to its disk, 0 where it does before it acknowledges."""


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
    """What the server that leads a stream says of it."""

    first_seq: int
    deleted: list[int]
    """Ascending, every sequence after the first one that was deleted."""
    copies: dict[str, bool]
    """The other servers that have a copy, and whether each is online. Not those of a stream that drops
    messages by itself: each copy does, and no two at once."""


def leader_state(conn: Connection, stream: str) -> LeaderState:
    """Ask the leader of a stream what it lacks, and who has copies. Raises as `Connection.api`."""
    answer = conn.api(f"STREAM.INFO.{stream}", {"deleted_details": True})
    state, config = answer["state"], answer["config"]
    replicas = (answer.get("cluster") or {}).get("replicas") or []
    if _limits(config).are_any or config.get("allow_msg_ttl"):
        replicas = []
    copies = {replica["name"]: not replica.get("offline") for replica in replicas}
    return LeaderState(state["first_seq"], sorted(state.get("deleted") or []), copies)


def stream_names(conn: Connection) -> list[str]:
    """The names of all streams, sorted. Raises as `Connection.api`, and WireError above 10,000 streams."""
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
    """The first sequence that was stored at or after a moment (ns since 1970), one above the last where none
    was; the server searches, and takes its clock not to have gone back.

    A consumer that starts at the moment tells it: that needs no right beyond what reading needs. Raises as
    `Connection.api`.
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
    """Some messages as they lie in the stream, in their order, by column."""

    subjects: pa.Array
    headers: pa.Array
    payloads: pa.Array
    """These three as bytes."""
    seqs: Numbers
    timestamps_ns: Numbers
    """When the stream took each, in ns since 1970."""


def joined(pieces: Sequence[Columns]) -> Columns:
    """The messages of several pieces, one after the other."""
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
    """The place of a record in the stream it was sourced from, as `Nats-Stream-Source` names it.

    The value is `<index> <seq> <filters> <transforms> <subject> <identity>`. The index is the source's stream
    name, with `:` and a hash of the API prefix when the stream is another domain's, and with `:C=` and a hash
    of the consumer's name when the source reads a durable consumer. The consumer changes with every epoch,
    the API prefix does not, so a domain is found by the first two. (server/stream.go, composeIName and
    genSourceHeader; seen on nats-server 2.15.1.)

    `identity` tells two streams of one name apart (a hash of when the stream was made; empty from a server
    older than 2.15); `subject` is the subject it had there.
    """

    stream: str
    index: str
    seq: int
    identity: str
    subject: str


def origin(index: str) -> str:
    """An index without its consumer, as it stands in `StreamInfo.source_index`: the same for every epoch."""
    return index.partition(_CONSUMER_MARK)[0]


def domain_of(index: str, known: Mapping[str, str]) -> str | None:
    """The domain of a source, None if it is unknown. `known` are the sources that the stream has now
    (`StreamInfo.source_index`). What a source brought stays when the stream has it no longer: a class rests,
    a leaf is over its bytes an hour, or revoked."""
    source = origin(index)
    return known.get(source) or _former_domain(source)


@lru_cache(_FORMER_KNOWN)
def _former_domain(origin: str) -> str | None:
    """The domain in the name of a leaf's stream, if the hash of the API prefix beside it is that domain's.
    The hub's server wrote both while the source stood in its configuration."""
    name = origin.partition(":")[0]
    domain, _, cls = name.partition("_")[2].rpartition("_")
    source = {"name": leaf_stream(domain, cls), "external": {"api": api_prefix(domain)}}
    return domain if domain and index_name(source) == origin else None


def parse_source(value: bytes) -> SourceKey:
    """Parse the value of `Nats-Stream-Source`. Raises ValueError in words when it is something else."""
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
    """The server's short hash of a name: eight bytes of SHA-256, each modulo 62."""
    return "".join(_DIGITS[byte % 62] for byte in hashlib.sha256(text.encode()).digest()[:8])


def index_name(source: Mapping[str, Any]) -> str:
    """The index of a source of a stream's configuration, without its consumer (see `origin`)."""
    api = (source.get("external") or {}).get("api")
    return f"{source['name']}:{name_hash(api)}" if api else str(source["name"])


def source_index(sources: list[Mapping[str, Any]], own_domain: str) -> dict[str, str]:
    """The domain of every source, by its index without the consumer.

    A source without `external` is a stream of the server itself, of `own_domain`. A prefix that is not
    `$JS.<domain>.API` names no domain and is left out.
    """
    found: dict[str, str] = {}
    for source in sources:
        api = (source.get("external") or {}).get("api")
        domain = own_domain if not api else _domain_of(api)
        if domain:
            found[index_name(source)] = domain
    return found


def made_again(metadata: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """`StreamInfo.made` from the metadata of an aggregate."""
    named = (
        (*key.removeprefix(MADE_METADATA).partition("."), created)
        for key, created in metadata.items()
        if key.startswith(MADE_METADATA)
    )
    return {(stream, name_hash(made)): name_hash(created) for stream, _, made, created in named}


def _domain_of(api: str) -> str:
    parts = api.split(".")
    return parts[1] if len(parts) == 3 and parts[0] == "$JS" and parts[2] == "API" else ""
