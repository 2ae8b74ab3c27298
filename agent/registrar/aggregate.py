"""The aggregate: its configuration, its sources and how they fare. Pure: reads and writes the JSON of
JetStream as plain mappings, decides what is to change, changes nothing itself.

A source sits on a durable consumer of the leaf. To remove such a source and add it again makes the hub ask
the leaf at once instead of after a timeout of five seconds. Seen on 2.15.1: it goes on after the newest
message of that source in the aggregate. Where that was purged it goes on from the consumer's ack floor:
nothing is lost, but what the leaf does not know to be acknowledged comes again (under steady flow the floor
trails by up to `max_ack_pending`), and `seq` stays absent until the next message, so the caller notes it
first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from agent.contract import (
    COMMANDS,
    COMMANDS_BYTES,
    FLEET_BUCKET,
    MAX_BATCH_BYTES,
    VERSION,
    Committed,
    ContractError,
    api_prefix,
    deliver_subject,
    leaf_stream,
    link_consumer,
)
from agent.jetstream import StreamInfo, covers

ALIVE: Final = 2.0
"""Seconds without a sign of life after which a source is not well; the leaf sends a heartbeat each second."""

_GRACE = 0.25
_QUICK_TRIES = 5
_LONGEST_WAIT = 300.0
_METADATA = {"petiole.version": str(VERSION)}
_FLEET_BYTES = 64 * 2**20

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


def aggregate_config(name: str, max_bytes: int, sources: list[Source]) -> dict[str, Any]:
    """The configuration of an aggregate, with what must not differ. Without a source the server gives it its
    own name as subject, which nobody may publish to, and a window of duplicates that only then does no
    harm."""
    config: dict[str, Any] = {
        "name": name,
        "storage": "file",
        "compression": "s2",
        "retention": "limits",
        "discard": "new",
        "max_age": 0,
        "max_bytes": max_bytes,
        "allow_direct": True,
        "metadata": _METADATA,
        "sources": sources,
    }
    return {**config, "subjects": [], "duplicate_window": 0} if sources else config


def commands_config() -> dict[str, Any]:
    """The stream of commands; every leaf has a consumer on it, so their number is not limited."""
    return {
        "name": COMMANDS,
        "subjects": ["cmd.>"],
        "storage": "file",
        "compression": "s2",
        "retention": "limits",
        "discard": "old",
        "max_bytes": COMMANDS_BYTES,
        "max_consumers": -1,
        "allow_direct": True,
        "metadata": _METADATA,
    }


def fleet_config() -> dict[str, Any]:
    """The stream under the key-value bucket of the fleet, one record a leaf."""
    return {
        "name": f"KV_{FLEET_BUCKET}",
        "subjects": [f"$KV.{FLEET_BUCKET}.>"],
        "storage": "file",
        "compression": "s2",
        "retention": "limits",
        "discard": "new",
        "max_msgs_per_subject": 1,
        "max_bytes": _FLEET_BYTES,
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "metadata": _METADATA,
    }


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
    if config.get("subjects"):
        found.append("it had subjects of its own, so others could write into it; taken away")
    return found


def planned(have: Iterable[Source], want: Mapping[str, Source], known: Iterable[str]) -> list[Source] | None:
    """The sources an aggregate shall have, None where it has them. `want` is what the leaves announced; a
    source of a leaf that is `known` from the configuration but has not announced itself stays as it is; one
    of a leaf that is not known goes."""
    old = list(have)
    known = set(known)
    kept = [want.get(one["name"], one) for one in old if one["name"] in want or one["name"] in known]
    names = {one["name"] for one in old}
    new = kept + [one for name, one in want.items() if name not in names]
    same = len(new) == len(old) and all(covers(a, b) for a, b in zip(old, new, strict=True))
    return None if same else new


@dataclass(frozen=True, slots=True)
class SourceState:
    """How a source fares: the highest leaf sequence it has stored (0 where it cannot tell), the seconds since
    a sign of life (None: never since this server started or the source was added) and the server's error."""

    seq: int
    active: float | None
    error: str = ""

    @property
    def alive(self) -> bool:
        """Whether the leaf was heard lately."""
        return self.active is not None and self.active < ALIVE


@dataclass(frozen=True, slots=True)
class Observation:
    """An aggregate as it was when its server was asked, at a monotonic time; `states` is by the name of the
    leaf's stream."""

    info: StreamInfo
    states: Mapping[str, SourceState]
    asked: float


def observed(info: StreamInfo, asked: float) -> Observation:
    """What a stream's info tells of its sources."""
    states = {
        one["name"]: SourceState(
            seq=one.get("seq", 0),
            active=None if one["active"] < 0 else one["active"] / 1e9,
            error=(one.get("error") or {}).get("description", ""),
        )
        for one in info.sources
    }
    return Observation(info, states, asked)


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


@dataclass(frozen=True, slots=True)
class Suspect:
    """A source whose leaf is linked and that has not shown itself; times are monotonic seconds. Only a sign
    of life after `since` counts; before `not_before` it is let alone."""

    since: float
    not_before: float = 0.0
    tries: int = 0
    tried_at: float = 0.0

    def tried(self, now: float) -> Suspect:
        """The same after its source was removed and added again."""
        return replace(self, since=now, tries=self.tries + 1, tried_at=now)

    @property
    def hopeless(self) -> bool:
        """Whether adding it again has not helped so often that a person should look."""
        return self.tries >= _QUICK_TRIES


def judge(suspect: Suspect, state: SourceState | None, now: float) -> Literal["well", "wait", "again"]:
    """Whether a suspect source flows, or is to be removed and added again. A source that was never heard
    cannot be coming back by itself soon; one that was is given a moment to show itself."""
    if state is None:
        return "wait"
    if state.active is not None and state.active < now - suspect.since:
        return "well"
    if suspect.tries == 0:
        due = max(suspect.not_before, suspect.since + (0.0 if state.active is None else _GRACE))
    else:
        due = suspect.tried_at + _wait_after(suspect.tries)
    return "again" if now >= due else "wait"


def next_look(suspect: Suspect, now: float) -> float:
    """When to look at a suspect again."""
    return suspect.tried_at + _wait_after(suspect.tries) if suspect.hopeless else now + _GRACE


def _wait_after(tries: int) -> float:
    """Each try scans the aggregate, so what does not help is done ever more rarely."""
    return 1.0 if tries < _QUICK_TRIES else min(10.0 * 2.0 ** min(tries - _QUICK_TRIES, 10), _LONGEST_WAIT)
