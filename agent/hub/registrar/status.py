"""Shows the fleet, a sentence per domain. Pure.

Knowledge is copied at once and leaves are shown on demand; ten thousand would block the loop for a third of a
second.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final

from agent.base.logs import time_text
from agent.contract import Announce, ClassState, LeafState, gravest, leaf_stream, seconds_to_loss
from agent.hub.registrar.aggregate import ALIVE, Observation, is_full
from agent.hub.registrar.records import REVOKED, ClassRecord, LeafRecord
from agent.jetstream import StreamInfo
from agent.jetstream.info import CopyStatus

_NEVER: Final = float("-inf")


@dataclass(frozen=True)
class KnownFleet:
    """An immutable copy of knowledge."""

    domains: Sequence[str]
    """Configured."""
    leaves: Mapping[str, LeafRecord]
    announced: Mapping[str, Announce]
    heard_at: Mapping[str, float]
    linked: Container[str]
    revoked: Container[str]
    resting: Container[str]
    seen: Mapping[str, Observation]
    trouble: Mapping[str, str]
    """Faults by domain."""
    audited: Mapping[str, Mapping[str, Any]]
    """Audits by domain."""
    now: float
    """Monotonic seconds."""
    at: datetime
    sent: Mapping[str, int] = field(default_factory=dict)
    """Link bytes, if counted."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Refusals by domain."""
    capped: Mapping[str, str] = field(default_factory=dict)
    """Hourly bytes of domains over the limit."""

    @cached_property
    def states(self) -> Mapping[str, CopyStatus]:
        return {name: state for look in self.seen.values() for name, state in look.states.items()}

    def unheard(self, domain: str) -> float | None:
        """Return seconds of a silent agent, or None."""
        leaf = self.leaves.get(domain)
        if leaf is None:
            return None
        ago = self.heard_ago(domain)
        return ago if ago > leaf.silent_after else None

    def heard_ago(self, domain: str) -> float:
        """Return seconds since the agent was heard, infinity for never."""
        return self.now - self.heard_at.get(domain, _NEVER)

    def announced_at(self, domain: str) -> str:
        """Return the last announcement (RFC 3339, hub clock), "" for never."""
        if domain not in self.leaves:
            return ""
        if domain not in self.announced:
            return self.leaves[domain].announced_at
        return (self.at - timedelta(seconds=self.heard_ago(domain))).isoformat(timespec="seconds")


class ShownLeaves(Mapping[str, dict[str, Any]]):
    """Shown configured leaves."""

    def __init__(self, known: KnownFleet) -> None:
        self._known = known
        self._domains = frozenset(known.domains)

    def __getitem__(self, domain: str) -> dict[str, Any]:
        if domain not in self._domains:
            raise KeyError(domain)
        row = _leaf(domain, self._known)
        row["audit"] = self._known.audited.get(domain)
        return row

    def __iter__(self) -> Iterator[str]:
        return iter(self._known.domains)

    def __len__(self) -> int:
        return len(self._domains)


def fleet_status(
    known: KnownFleet, ahead: Mapping[str, str], hub: str | None, audit: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return aggregates and leaves; `hub` is its fault, `audit` the audit's head."""
    return {
        "state": hub or "well",
        "aggregates": {
            name: {"state": ahead.get(name, ""), **_aggregate(observation.info)}
            for name, observation in known.seen.items()
        },
        "audit": audit,
        "leaves": ShownLeaves(known),
    }


def _aggregate(info: StreamInfo) -> dict[str, Any]:
    return {
        "created": info.created,
        "first": info.first,
        "last": info.last,
        "bytes": info.bytes,
        "max_bytes": info.config.get("max_bytes"),
        "full": is_full(info),
        "sources": len(info.sources),
    }


def _leaf(domain: str, known: KnownFleet) -> dict[str, Any]:
    leaf, announced = known.leaves.get(domain), known.announced.get(domain)
    row: dict[str, Any] = {"linked": domain in known.linked}
    if leaf is not None:
        row |= {
            "machine": leaf.machine,
            "run": leaf.run,
            "versions": leaf.versions,
            "announced_at": known.announced_at(domain),
            "classes": {
                cls: _class(
                    record,
                    announced.classes.get(cls) if announced else None,
                    known.states.get(leaf_stream(domain, cls)),
                )
                for cls, record in leaf.classes.items()
            },
        }
    states = leaf_states(domain, known)
    sentence = "; ".join(state.sentence(about) for state, about in states.items())
    return {"state": sentence, "word": gravest(states).value, "words": [*states], **row}


def _class(record: ClassRecord, said: ClassState | None, state: CopyStatus | None) -> dict[str, Any]:
    """Return a class with both sides. `active` is seconds since a sign of life, `error` the server's."""
    ledger = said.ledger if said is not None else None
    return {
        "epoch": record.epoch,
        "stream": record.stream,
        "cursor": record.held.seq if record.held else 0,
        "last": None if said is None else said.last,
        "active": None if state is None else state.active,
        "error": "" if state is None else state.error,
        "ledger": None if ledger is None else asdict(ledger),
        "seconds_to_loss": None if said is None else seconds_to_loss(said.seconds_to_loss),
    }


def leaf_states(domain: str, known: KnownFleet) -> dict[LeafState, str]:
    """Return a leaf's states, gravest first; announced ones count while heard. Revoked leaves are rightly
    away.
    """
    found = _seen_states(domain, known)
    leaf = known.leaves.get(domain)
    if leaf is not None and not found.keys() & {LeafState.AWAY, LeafState.SILENT}:
        found |= {
            state: leaf.states[state] for state in LeafState if state.announced and state in leaf.states
        }
    if found.keys() & {LeafState.PAUSED, LeafState.CAPPED}:
        found.pop(LeafState.STOPPED, None)
    return {state: found[state] for state in LeafState if state in found} or {LeafState.FLOWING: ""}


def _seen_states(domain: str, known: KnownFleet) -> dict[LeafState, str]:
    """Return states seen by the hub. Sources flow without agent, but nothing is accepted."""
    leaf, linked = known.leaves.get(domain), domain in known.linked
    if domain in known.revoked:
        return {LeafState.AWAY: REVOKED.format(domain=domain)}
    found: dict[LeafState, str] = {}
    if trouble := known.trouble.get(domain):
        found[LeafState.TROUBLE] = trouble
    if capped := known.capped.get(domain):
        found[LeafState.CAPPED] = capped
    if refused := known.refused.get(domain):
        return found | {LeafState.REFUSED: refused}
    if leaf is None:
        about = (
            {LeafState.STOPPED: "its agent has never announced itself"} if linked else {LeafState.NEVER: ""}
        )
        return found | about
    names = {cls: leaf_stream(domain, cls) for cls in leaf.classes}
    stopped = [
        cls
        for cls, name in names.items()
        if name not in known.resting and ((state := known.states.get(name)) is None or not state.alive(ALIVE))
    ]
    unheard, rests = known.unheard(domain), all(name in known.resting for name in names.values())
    if not linked and (stopped or (rests and unheard is not None)):
        found[LeafState.AWAY] = f"not linked; last announced at {known.announced_at(domain)}"
    elif unheard is not None:
        found[LeafState.SILENT] = time_text(unheard, " s")
    elif stopped:
        found[LeafState.STOPPED] = f"{', '.join(stopped)} does not flow yet"
    return found
