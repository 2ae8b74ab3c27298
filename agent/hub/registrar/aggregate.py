"""The aggregate: its configuration, its sources and their state. Pure: reads and writes the JSON of JetStream
as plain mappings and decides what to change.

A source sits on a durable consumer of the leaf. One that is removed and added again goes on
after the newest message of that epoch in the aggregate, and its `seq` is that message's, as it is after a
restart of the server. Where that message was purged it goes on from the consumer's ack floor: nothing is
lost, but what the leaf does not know to be acknowledged comes again (under steady flow the floor trails by up
to `max_ack_pending`), and `seq` stays absent until the next message, so the caller notes it first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, field

from agent.base.logs import listed
from agent.contract import (
    COMMANDS,
    COMMANDS_BYTES,
    FLEET_BUCKET,
    MAX_BATCH_BYTES,
    MAX_COMMAND_BYTES,
    SYNC_METADATA,
    VERSION,
    Committed,
    ContractError,
    api_prefix,
    deliver_subject,
    leaf_stream,
    link_consumer,
)
from agent.jetstream import StreamInfo, covers
from agent.jetstream.info import CopyStatus, copy_status

ALIVE: Final = 2.0
"""Seconds without a sign of life after which a source is not well; the leaf sends a heartbeat each second."""

_METADATA = {"petiole.version": str(VERSION)}
_FLEET_BYTES = 64 * 2**20
_COMMAND_HEADER_BYTES = 4096

Source = dict[str, Any]


def source(domain: str, cls: str, epoch: str) -> Source:
    """The source of one class of a leaf. The transform pins the domain, for a leaf's own stream may hold any
    subject its administrator likes."""
    return {
        "name": leaf_stream(domain, cls),
        "external": {"api": api_prefix(domain), "deliver": ""},
        "consumer": {
            "name": link_consumer(epoch),
            "deliver_subject": deliver_subject(domain, cls, epoch),
        },
        "subject_transforms": [{"src": "tel.*.>", "dest": f"tel.{domain}.>"}],
    }


class AggregateSettings(Struct, frozen=True):
    max_bytes: int
    """Bytes that it may take."""
    replicas: int = 1
    """On how many servers of the hub it is stored."""
    max_sources: int = 200
    """How many classes of leaves it takes."""
    sync_seconds: float = 0.0
    """How often its server syncs it; 0: before it acknowledges."""


def aggregate_config(
    name: str, settings: AggregateSettings, sources: list[Source], made: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The configuration of an aggregate, with what must not differ; `made` is part of its metadata. Without a
    source the server gives it its own name as subject, which no user may publish to, and a window of
    duplicates, which is harmless only then."""
    config: dict[str, Any] = {
        "name": name,
        "storage": "file",
        "compression": _compression(settings.replicas),
        "retention": "limits",
        "discard": "new",
        "max_age": 0,
        "max_bytes": settings.max_bytes,
        "max_msgs": -1,
        "max_msgs_per_subject": -1,
        "num_replicas": settings.replicas,
        "allow_direct": True,
        "metadata": {**_METADATA, SYNC_METADATA: f"{settings.sync_seconds:g}", **(made or {})},
        "sources": sources,
    }
    return {**config, "subjects": [], "duplicate_window": 0} if sources else config


def commands_config(replicas: int = 1) -> dict[str, Any]:
    """The stream of commands; every leaf has a consumer on it, so their number is not limited. When full it
    refuses a new command rather than lose one that a leaf has yet to run; each says itself when it may go."""
    return {
        "name": COMMANDS,
        "subjects": ["cmd.>"],
        "storage": "file",
        "compression": _compression(replicas),
        "retention": "limits",
        "discard": "new",
        "allow_msg_ttl": True,
        "max_msg_size": MAX_COMMAND_BYTES + _COMMAND_HEADER_BYTES,
        "max_bytes": COMMANDS_BYTES,
        "max_consumers": -1,
        "num_replicas": replicas,
        "allow_direct": True,
        "metadata": _METADATA,
    }


def fleet_config(replicas: int = 1) -> dict[str, Any]:
    """The stream under the key-value bucket of the fleet, one record a leaf."""
    return {
        "name": f"KV_{FLEET_BUCKET}",
        "subjects": [f"$KV.{FLEET_BUCKET}.>"],
        "storage": "file",
        "compression": _compression(replicas),
        "retention": "limits",
        "discard": "new",
        "max_msgs_per_subject": 1,
        "max_bytes": _FLEET_BYTES,
        "num_replicas": replicas,
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "metadata": _METADATA,
    }


def _compression(replicas: int) -> str:
    """None where a stream has copies. A server that is killed and starts again may cut the newest
    block of its copy and compress it, and then appends to it uncompressed: the next start cannot read that
    block, and the copy stays away. With one of three copies left the stream takes nothing."""
    return "s2" if replicas == 1 else "none"


def faults(config: Mapping[str, Any]) -> list[str]:
    """What is dangerous in an aggregate as it stands, one sentence each; all of it can be set right."""
    if not config.get("sources"):
        return []
    found = []
    if config.get("duplicate_window"):
        found.append(
            "its duplicate_window was not 0, so a message that came again under its id would have been "
            "dropped unseen; set to 0"
        )
    if config.get("max_age"):
        found.append(
            "its max_age was not 0, so messages would have gone by the clock before they were in the table; "
            "set to 0"
        )
    if config.get("discard") != "new":
        found.append("it discarded old messages when full; now it makes the leaves wait")
    if config.get("max_msgs_per_subject", -1) > 0:
        found.append("it kept only the newest messages of a subject; set to keep all")
    if config.get("subjects"):
        found.append("it had subjects of its own, so others could write into it; taken away")
    return found


def differences(config: Mapping[str, Any], want: Mapping[str, Any]) -> list[str]:
    """What differs in an aggregate from the configuration that it is to have, sources apart, one sentence
    each: somebody changed it, or an earlier version made it."""
    sentences = faults(config)
    named = {"duplicate_window", "max_age", "discard", "subjects", "max_msgs_per_subject", "sources"}
    other = [key for key in want if key not in named and not covers(config, {key: want[key]})]
    if other:
        sentences.append(f"its {', '.join(sorted(other))} differed from the hub's configuration; set to it")
    return sentences


def moved_by_hand(have: Iterable[Source], placed: Mapping[str, Source]) -> list[str]:
    """Whose sources are not as the registrar `placed` them, one sentence each."""
    now = {entry["name"]: entry for entry in have}
    gone = sorted(placed.keys() - now.keys())
    other = sorted(name for name in placed.keys() & now.keys() if not covers(now[name], placed[name]))
    strange = sorted(now.keys() - placed.keys())
    return [
        f"the source{'s'[: len(names) > 1]} of {listed(names)} {what}"
        for names, what in (
            (gone, "had been removed by hand; added again"),
            (other, "had been changed by hand; set right"),
            (strange, "had been added by hand; kept only where its leaf belongs there"),
        )
        if names
    ]


def planned(
    have: Iterable[Source], want: Mapping[str, Source], may_stay: Callable[[str], bool]
) -> list[Source] | None:
    """The sources an aggregate shall have, None where it has them. `want` is what the leaves announced; of
    the others one stays as it is if it `may_stay`: the leaf is known from the configuration and has not
    announced itself."""
    old = list(have)
    kept = [
        want.get(entry["name"], entry) for entry in old if entry["name"] in want or may_stay(entry["name"])
    ]
    names = {entry["name"] for entry in old}
    new = kept + [entry for name, entry in want.items() if name not in names]
    same = len(new) == len(old) and all(covers(a, b) for a, b in zip(old, new, strict=True))
    return None if same else new


class Observation(Struct, frozen=True):
    """An aggregate as its server reported it."""

    info: StreamInfo
    states: Mapping[str, CopyStatus]
    """By the name of the leaf's stream."""
    asked: float
    """When the server was asked, in monotonic seconds."""
    consumers: Mapping[str, str] = field(default_factory=dict)
    """The consumers of its sources as they are configured, by the name of the leaf's stream."""


def observed(info: StreamInfo, asked: float) -> Observation:
    """What a stream's info tells of its sources."""
    sources = info.config.get("sources") or []
    consumers = {entry["name"]: (entry.get("consumer") or {}).get("name", "") for entry in sources}
    states = {entry["name"]: copy_status(entry, consumers.get(entry["name"], "")) for entry in info.sources}
    return Observation(info, states, asked, consumers)


def source_state(seen: Observation, domain: str, cls: str, epoch: str) -> CopyStatus | None:
    """The state of a source, None where there is none or it still sits on another epoch."""
    state = seen.states.get(leaf_stream(domain, cls))
    return state if state is not None and state.consumer == link_consumer(epoch) else None


def purge_up_to(committed: Committed, info: StreamInfo, keep: int) -> int:
    """Up to which sequence an aggregate may be purged now that `ingest` has committed so far, 0 for nothing.
    Raises `ContractError` where what was committed cannot be of this stream."""
    if committed.stream != info.name:
        raise ContractError(f"committed: stream {committed.stream!r} is not {info.name}, which is kept here")
    if committed.created != info.created:
        raise ContractError(
            f"committed: {info.name} was made at {info.created}, not at {committed.created}; "
            f"what was committed is of a stream that is gone"
        )
    if committed.seq > info.last:
        raise ContractError(
            f"committed: {info.name} ends at {info.last}, so {committed.seq} cannot be committed of it"
        )
    return max(0, committed.seq - keep)


def is_full(info: StreamInfo) -> bool:
    """Whether an aggregate has no room for two more large batches, so that leaves wait."""
    limit: int = info.config.get("max_bytes", -1)
    return limit > 0 and info.bytes + 2 * MAX_BATCH_BYTES > limit


def parse_source_header(text: str) -> tuple[str, int]:
    """The leaf's stream and sequence of a message in the aggregate, from the `Nats-Stream-Source` that the
    hub's server wrote: `<stream>[:<hash>…] <sequence> …`. Raises `ContractError`."""
    name, _, rest = text.partition(" ")
    number = rest.partition(" ")[0]
    if not name or not number.isdecimal():
        raise ContractError(f"Nats-Stream-Source {text!r:.160} is not <stream> <sequence> …")
    return name.partition(":")[0], int(number)
