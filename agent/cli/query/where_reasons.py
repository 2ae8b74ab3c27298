"""Builds the answer of `petiole where` with a reason for each difference of stages. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from agent.cli.query.streams import HubBacklog
from agent.cli.query.where_report import ReadingCount, StageReason, WhereReport, sum_counts

if TYPE_CHECKING:
    from hub_jobs.where import DeviceCounts, DomainFindings

_COUNTS: Final = ("accepted", "stored", "refused", "dead")


@dataclass(frozen=True, slots=True)
class LeafReport:
    """The leaf as announced to the hub, or by its own agent."""

    sentence: str
    """State of its link."""
    ledgers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Run and readings by class."""
    behind: Mapping[str, int] = field(default_factory=dict)
    """Messages missing at the hub by class."""


@dataclass(slots=True)
class DomainObservation:
    """All observations; None if missing."""

    leaf: LeafReport | None = None
    hub: HubBacklog | None = None
    tables: DomainFindings | None = None
    device: DeviceCounts | None = None


def report(
    domain: str, at: datetime, seen: DomainObservation, device: str | None = None, span: str = ""
) -> WhereReport:
    result = WhereReport(domain, at, span, device, "" if seen.leaf is None else seen.leaf.sentence)
    if seen.tables is None:
        _without_tables(result, seen)
        return result
    result.lost += seen.tables.lost
    result.explained += seen.tables.explained
    for cls, sums in seen.tables.classes.items():
        _class(result, cls, sums, seen)
    for cls in sorted((seen.leaf.ledgers if seen.leaf else {}).keys() - result.classes.keys()):
        _without_tables(result, seen, cls)
    if seen.tables.reasons and sum(sums.quarantined + sums.dead for sums in seen.tables.classes.values()):
        named = ", ".join(f"{count:,} {reason}" for reason, count in sorted(seen.tables.reasons.items()))
        result.explained.append(f"in quarantine: {named}")
    if device is not None and seen.device is not None:
        _device(result, device, seen.device)
    return result


def _class(result: WhereReport, cls: str, sums: Any, seen: DomainObservation) -> None:
    leaf = seen.leaf
    newer = _newer(result, cls, seen)
    accepted = None if sums.accepted is None else sums.accepted + newer["accepted"]
    # What the leaf has beyond the records in bronze only itself and the hub's streams can tell.
    more = leaf is None or cls not in leaf.ledgers or seen.hub is None
    stages = {
        "accepted": None if accepted is None else ReadingCount(accepted, more),
        "stored": ReadingCount(sums.stored + newer["stored"], more or sums.never_came > 0),
        "at the hub": ReadingCount(sums.at_hub, seen.hub is None or seen.hub.cut),
        "in bronze": ReadingCount(sums.in_bronze),
        "in readings": ReadingCount(sums.in_readings),
        "quarantined": ReadingCount(sums.quarantined),
    }
    result.classes[cls] = {stage: count for stage, count in stages.items() if count is not None}
    refused = (sums.refused or 0) + newer["refused"]
    late = sums.refused_late
    dead = sums.dead + newer["dead"]
    settled = newer["stored"] + newer["refused"] + newer["dead"]
    tail = max(0, (sums.open_tail or 0) + newer["accepted"] - settled)
    of = leaf.sentence if leaf else ""
    behind = leaf.behind.get(cls, 0) if leaf else 0
    ahead = f" ({behind} messages)" if behind else ""
    ends = "; ".join(
        f"{place.stream} ends at {place.last}, bronze has it up to {place.after}"
        for place in (seen.hub.places if seen.hub else [])
    )
    accept, store, hub, bronze = (
        ("accepted", "stored"),
        ("stored", "at the hub"),
        ("at the hub", "in bronze"),
        ("in bronze", "in readings or quarantine"),
    )
    candidates = [
        (accept, refused - late, "were refused, and their senders know it", False),
        (accept, late, "were acknowledged as accepted only, and could not be stored in the end", False),
        (accept, dead, "were no readings: dead letters, which quarantine has with their place", False),
        (accept, tail, "were accepted only and not stored when their run was last heard of", False),
        (store, sums.discarded, "were discarded at the edge, for their class gives way when full", False),
        (store, sums.never_came, "or more were acknowledged as stored and never came", True),
        (store, newer["stored"], f"are still on {result.domain}{ahead}: {of}", False),
        (hub, sums.waiting, f"wait for ingest: {ends}", False),
        (bronze, sums.pending, "wait for refine", False),
        (bronze, sums.missing, "are in bronze and nowhere else", True),
        (bronze, sums.doubled, "are in readings more than once", True),
    ]
    result.reasons += [StageReason(between, cls, *rest) for between, *rest in candidates if rest[0] > 0]


def _newer(result: WhereReport, cls: str, seen: DomainObservation) -> dict[str, int]:
    """Return announced counts beyond ledger records; none for a time span."""
    ledger = (seen.leaf.ledgers if seen.leaf else {}).get(cls)
    if ledger is None or seen.tables is None or result.span:
        return dict.fromkeys(_COUNTS, 0)
    account = seen.tables.accounts.get((cls, str(ledger["run"])))
    recorded = {name: int(getattr(account, name)) if account else 0 for name in _COUNTS}
    return {name: max(0, int(ledger["readings"][name]) - recorded[name]) for name in _COUNTS}


def _without_tables(result: WhereReport, seen: DomainObservation, only: str | None = None) -> None:
    """Count the present run and hub messages without tables."""
    leaf = seen.leaf
    names = set(leaf.ledgers if leaf else ()) | {
        message.cls for message in (seen.hub.messages if seen.hub else ())
    }
    for cls in sorted(names if only is None else {only}):
        stages: dict[str, ReadingCount] = {}
        ledger = (leaf.ledgers if leaf else {}).get(cls)
        if ledger is not None:
            # Earlier runs are in the tables' ledgers only.
            stages["accepted"] = ReadingCount(int(ledger["readings"]["accepted"]), bound=True)
            stages["stored"] = ReadingCount(int(ledger["readings"]["stored"]), bound=True)
        if seen.hub is not None:
            by_batch = {
                (message.run, message.n, None if message.run else at): message.readings
                for at, message in enumerate(seen.hub.messages)
                if message.cls == cls and not message.dead
            }
            stages["at the hub"] = ReadingCount(sum(by_batch.values()), bound=True)
        result.classes[cls] = stages
        if (behind := (leaf.behind if leaf else {}).get(cls, 0)) > 0:
            result.explained.append(
                f"class {cls}: {result.domain} was {behind} messages ahead of the hub when it last announced "
                "itself"
            )


def _device(result: WhereReport, device: str, counts: DeviceCounts) -> None:
    """Add the device's column first."""
    domain = sum_counts(list(result.classes.values()))
    bounded = counts.cut or counts.thinned > 0
    at_hub = counts.in_bronze + counts.quarantined
    waiting = any(reason.between[1] in ("at the hub", "in bronze") for reason in result.reasons)
    result.classes = {
        f"device {device}": {
            "at the hub": ReadingCount(at_hub, waiting or bounded),
            "in bronze": ReadingCount(at_hub, bounded),
            "in readings": ReadingCount(counts.in_readings, counts.cut),
            "quarantined": ReadingCount(counts.quarantined, counts.unnamed > 0),
        },
        f"all of {result.domain}": domain,
    }
    between = ("in bronze", "in readings or quarantine")
    own = [
        (counts.pending, "wait for refine", False),
        (counts.missing, "are in bronze and nowhere else", True),
        (counts.doubled, "are in readings more than once", True),
    ]
    result.reasons += [StageReason(between, device, *reason) for reason in own if reason[0] > 0]
    notes = [
        (counts.unnamed, "readings of its domain in quarantine name no device that can be read"),
        (counts.thinned, "messages of bronze have no payload any more, so they were not looked into"),
    ]
    result.explained += [f"{device}: {count:,} {text}" for count, text in notes if count]
    if counts.cut:
        result.unseen.append("all of the device's readings: there are too many; give --from and --to")
