"""The fleet as people see it: one sentence a domain. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from agent.contract import Announce, ClassState, leaf_stream, seconds_to_loss
from agent.hub.registrar.aggregate import Observation, SourceState, is_full
from agent.hub.registrar.fleet_state import FleetState
from agent.hub.registrar.records import ClassRecord, LeafRecord
from agent.jetstream import StreamInfo

_MINUTES: Final = 120.0
"""Seconds from which on they are said as minutes."""


def fleet_status(
    domains: Iterable[str],
    fleet: FleetState,
    now: float,
    linked: set[str],
    troubles: dict[str, str],
    seen: Mapping[str, Observation],
    ahead: Mapping[str, str],
    hub: str | None,
) -> dict[str, Any]:
    """The aggregates and each configured leaf at `now`, in monotonic seconds. `troubles` gives a domain the
    sentence of what is wrong with it, `hub` is that of what is wrong with the hub itself. A revoked leaf is
    away as it should be."""
    silent = fleet.silent(now)
    states = {name: state for observation in seen.values() for name, state in observation.states.items()}
    return {
        "state": hub or "well",
        "aggregates": {
            name: {"state": ahead.get(name, ""), **_aggregate(observation.info)}
            for name, observation in seen.items()
        },
        "leaves": {
            domain: _leaf(
                domain,
                fleet.leaves.get(domain),
                fleet.announced.get(domain),
                domain in linked,
                troubles.get(domain),
                states,
                silent.get(domain),
                fleet.resting,
                fleet.announced_at(domain, now) if domain in fleet.leaves else "",
            )
            | ({"word": "away"} if domain in fleet.revoked else {})
            for domain in domains
        },
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


def _leaf(
    domain: str,
    leaf: LeafRecord | None,
    announced: Announce | None,
    linked: bool,
    trouble: str | None,
    states: Mapping[str, SourceState],
    unheard: float | None,
    resting: Container[str],
    announced_at: str,
) -> dict[str, Any]:
    row: dict[str, Any] = {"linked": linked}
    if leaf is not None:
        row |= {
            "machine": leaf.machine,
            "run": leaf.run,
            "versions": leaf.versions,
            "announced_at": announced_at,
            "classes": {
                cls: _class(
                    record,
                    announced.classes.get(cls) if announced else None,
                    states.get(leaf_stream(domain, cls)),
                )
                for cls, record in leaf.classes.items()
            },
        }
    word, sentence = leaf_state(domain, leaf, linked, trouble, states, unheard, resting, announced_at)
    return {"state": sentence, "word": word, **row}


def _class(record: ClassRecord, said: ClassState | None, state: SourceState | None) -> dict[str, Any]:
    """One class: the hub's side, and what its leaf `said` last, None where it has not since this agent
    started. `active` is the seconds since its source gave a sign of life, `error` its server's."""
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


def leaf_state(
    domain: str,
    leaf: LeafRecord | None,
    linked: bool,
    trouble: str | None,
    states: Mapping[str, SourceState],
    unheard: float | None,
    resting: Container[str],
    announced_at: str = "",
) -> tuple[str, str]:
    """How a leaf is, in one word and in a sentence; `unheard` is the seconds since its agent was heard, None
    unless it is silent. Sources flow on while an agent is dead, for they are between the servers; but nothing
    is taken in by then."""
    if trouble:
        return "trouble", trouble
    if leaf is None and linked:
        return "stopped", "linked, but its agent has never announced itself"
    if leaf is None:
        return "never", "never seen"
    stopped = [
        cls
        for cls in leaf.classes
        if leaf_stream(domain, cls) not in resting
        and ((state := states.get(leaf_stream(domain, cls))) is None or not state.alive)
    ]
    rests = all(leaf_stream(domain, cls) in resting for cls in leaf.classes)
    if not linked and (stopped or (rests and unheard is not None)):
        return "away", f"not linked; last announced at {announced_at or leaf.announced_at}"
    if unheard is not None:
        return (
            "silent",
            f"its server is linked, and its agent was last heard {_span(unheard)} ago; see its log",
        )
    if not stopped:
        return "flowing", "flowing"
    return "stopped", f"linked, but {', '.join(stopped)} does not flow yet"


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < _MINUTES else f"{seconds / 60:.0f} min"
