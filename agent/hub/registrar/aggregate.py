"""Decides an aggregate's configuration and sources on JetStream's JSON. Pure.

A readded source continues after its epoch's newest message, whose sequence is its `seq`. If that was purged,
it continues from the ack floor: messages may repeat (up to `max_ack_pending`), and `seq` is missing, so
callers note it before.
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
"""Seconds of silence before a source is faulty; heartbeats come each second."""

_METADATA = {"petiole.version": str(VERSION)}
_FLEET_BYTES = 64 * 2**20
_COMMAND_HEADER_BYTES = 4096

Source = dict[str, Any]


def source(domain: str, cls: str, epoch: str) -> Source:
    """Return a class's source. The transform pins the domain, as leaves' streams may hold any subject."""
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
    """Largest size in bytes."""
    replicas: int = 1
    """Number of replicas."""
    max_sources: int = 200
    """Most sources."""
    sync_seconds: float = 0.0
    """Sync interval; 0 for before acks."""


def aggregate_config(
    name: str, settings: AggregateSettings, sources: list[Source], made: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the configuration with fixed parts and `made` metadata.

    Without source, nats-server adds the name as subject, which no one may publish, and a duplicate window.
    """
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
    """Return the command stream: any number of consumers; when full it refuses new commands."""
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
    """Return the stream of the fleet's bucket."""
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
    """Return none for replicas: a killed server may compress its newest block and append uncompressed, which
    no start can read.
    """
    return "s2" if replicas == 1 else "none"


def faults(config: Mapping[str, Any]) -> list[str]:
    """Return dangerous settings, a sentence each."""
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
    """Return differences from the wanted configuration except sources, a sentence each."""
    sentences = faults(config)
    named = {"duplicate_window", "max_age", "discard", "subjects", "max_msgs_per_subject", "sources"}
    other = [key for key in want if key not in named and not covers(config, {key: want[key]})]
    if other:
        sentences.append(f"its {', '.join(sorted(other))} differed from the hub's configuration; set to it")
    return sentences


def moved_by_hand(have: Iterable[Source], placed: Mapping[str, Source]) -> list[str]:
    """Return changed sources, a sentence each."""
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
    """Return the wanted sources, None if present. Others stay only if `may_stay`: configured leaves not yet
    announced.
    """
    old = list(have)
    kept = [
        want.get(entry["name"], entry) for entry in old if entry["name"] in want or may_stay(entry["name"])
    ]
    names = {entry["name"] for entry in old}
    new = kept + [entry for name, entry in want.items() if name not in names]
    same = len(new) == len(old) and all(covers(a, b) for a, b in zip(old, new, strict=True))
    return None if same else new


class Observation(Struct, frozen=True):
    """An observed aggregate."""

    info: StreamInfo
    states: Mapping[str, CopyStatus]
    """By leaf stream."""
    asked: float
    """Monotonic seconds of the request."""
    consumers: Mapping[str, str] = field(default_factory=dict)
    """Configured consumers by leaf stream."""


def observed(info: StreamInfo, asked: float) -> Observation:
    """Return an info's observation."""
    sources = info.config.get("sources") or []
    consumers = {entry["name"]: (entry.get("consumer") or {}).get("name", "") for entry in sources}
    states = {entry["name"]: copy_status(entry, consumers.get(entry["name"], "")) for entry in info.sources}
    return Observation(info, states, asked, consumers)


def source_state(seen: Observation, domain: str, cls: str, epoch: str) -> CopyStatus | None:
    """Return a source's state, None if missing or of another epoch."""
    state = seen.states.get(leaf_stream(domain, cls))
    return state if state is not None and state.consumer == link_consumer(epoch) else None


def purge_up_to(committed: Committed, info: StreamInfo, keep: int) -> int:
    """Return the purge sequence after a commit, 0 for none. Raises `ContractError` for another stream's
    commit.
    """
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
    """Tell whether two large batches do not fit, so leaves wait."""
    limit: int = info.config.get("max_bytes", -1)
    return limit > 0 and info.bytes + 2 * MAX_BATCH_BYTES > limit


def parse_source_header(text: str) -> tuple[str, int]:
    """Parse leaf stream and sequence from `Nats-Stream-Source`: `<stream>[:<hash>…] <sequence> …`. Raises
    `ContractError`.
    """
    name, _, rest = text.partition(" ")
    number = rest.partition(" ")[0]
    if not name or not number.isdecimal():
        raise ContractError(f"Nats-Stream-Source {text!r:.160} is not <stream> <sequence> …")
    return name.partition(":")[0], int(number)
