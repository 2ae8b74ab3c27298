"""The answer to "where is my data?": of each class what was accepted, stored, at the hub, in bronze, in
readings and in quarantine, and the reason wherever two differ. Pure: it is given what was seen, and what
could not be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from agent.base.terminal import BAD, DIM, GOOD, WAITS, TerminalLine, table, wrapped
from agent.cli.query.hub_streams import HubBacklog
from agent.contract import Exit

if TYPE_CHECKING:
    from hub_jobs.where import DeviceCounts, DomainFindings

STAGES: Final = ("accepted", "stored", "at the hub", "in bronze", "in readings", "quarantined")
_COLUMNS: Final = 4
"""Classes that have a column of their own; more are shown together."""
_NAMED: Final = 1_000


@dataclass(frozen=True, slots=True)
class ReadingCount:
    """A number of readings; `bound`: so many or more."""

    readings: int
    bound: bool = False

    def text(self) -> str:
        """As it stands in the table."""
        return f"{'≥ ' if self.bound else ''}{self.readings:,}"


@dataclass(frozen=True, slots=True)
class StageReason:
    """Why so many readings of a class are at one stage and not at the next; a `grave` one is a loss or a
    double that nothing explains."""

    between: tuple[str, str]
    cls: str
    readings: int
    text: str
    grave: bool = False


@dataclass(frozen=True, slots=True)
class LeafReport:
    """The leaf as its hub's agent knows it, or itself: a sentence, and of each class what it announced last:
    its ledger's `run` and readings, and how many messages of its stream the hub lacks."""

    sentence: str
    ledgers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    behind: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class DomainObservation:
    """All that was seen; None where it was not."""

    leaf: LeafReport | None = None
    hub: HubBacklog | None = None
    tables: DomainFindings | None = None
    device: DeviceCounts | None = None


@dataclass(slots=True)
class WhereReport:
    """What is shown. `classes` gives each class its stages; one that is not known is absent. `sentences` name
    what is missing and what is explained; `unseen` is what could not be looked at, `failed` whether that was
    asked for."""

    domain: str
    at: datetime
    span: str = ""
    device: str | None = None
    sentence: str = ""
    classes: dict[str, dict[str, ReadingCount]] = field(default_factory=dict)
    reasons: list[StageReason] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    explained: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    failed: bool = False

    @property
    def grave(self) -> bool:
        """Whether something is gone without a reason, or doubled."""
        return bool(self.lost) or any(reason.grave for reason in self.reasons)

    @property
    def exit(self) -> Exit:
        """The exit code."""
        if self.grave:
            return Exit.LOSS
        return Exit.UNREACHABLE if self.failed else Exit.WELL

    def verdict(self) -> str:
        """All of it in one sentence."""
        if self.grave:
            count = sum(reason.readings for reason in self.reasons if reason.grave)
            subject = f"{count:,} readings or more are" if count else "something is"
            return f"{subject} missing or doubled without a reason"
        waiting = sum(reason.readings for reason in self.reasons if reason.between[0] != "accepted")
        if not any("in bronze" in counts for counts in self.classes.values()):
            return "the tables were not looked at, so whether something is missing is not known"
        scope = "of what could be looked at, " if self.unseen else ""
        well = f"{scope}nothing is missing, nothing is doubled"
        return f"{well}; the other {waiting:,} readings are explained below" if waiting else well

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        stages = {
            cls: {stage: asdict(count) if count is not None else None for stage, count in _every(counts)}
            for cls, counts in sorted(self.classes.items())
        }
        return {
            "domain": self.domain,
            "at": self.at.isoformat(),
            "span": self.span,
            "device": self.device,
            "leaf": self.sentence,
            "verdict": self.verdict(),
            "exit": int(self.exit),
            "classes": stages,
            "reasons": [{**asdict(reason), "between": list(reason.between)} for reason in self.reasons],
            "lost": self.lost[:_NAMED],
            "explained": self.explained[:_NAMED],
            "not_looked_at": self.unseen,
        }

    def lines(self, most: int | None, width: int | None) -> list[TerminalLine]:
        """What people are shown, within so many lines where `most` says so."""
        style = BAD if self.grave else WAITS if self.failed or self.unseen else GOOD
        head = [TerminalLine(f"{self.domain}: {self.verdict()}", style)]
        about = [f"{self.at:%Y-%m-%d %H:%M:%SZ}", *([self.span] if self.span else [])]
        head.append(TerminalLine("; ".join([*about, *([self.sentence] if self.sentence else [])]), DIM))
        sentences = [*self._reasons(), *(TerminalLine(f"  {sentence}", BAD) for sentence in self.lost)]
        sentences += [TerminalLine(f"  {sentence}") for sentence in self.explained]
        missed = [TerminalLine(f"not looked at: {sentence}", WAITS) for sentence in self.unseen]
        head, body, tail = (
            [row for line in part for row in wrapped(line, width)] for part in (head, sentences, missed)
        )
        head += self._table(width)
        room = None if most is None else most - len(head) - len(tail)
        if room is not None and len(body) > room:
            body = [*body[: max(0, room - 1)], TerminalLine("  and more: in a pipe or with --json", WAITS)]
        return [*head, *body, *tail]

    def _table(self, width: int | None) -> list[TerminalLine]:
        columns = sorted(self.classes.items())
        if len(columns) > _COLUMNS:
            columns = [("all classes", _together([column for _, column in columns]))]
        rows = []
        for stage in STAGES:
            counts = [column.get(stage) for _, column in columns]
            rows.append(((stage, *(count.text() if count else "-" for count in counts)), ""))
        return table(("READINGS", *(name for name, _ in columns)), rows, range(1, len(columns) + 1), width)

    def _reasons(self) -> list[TerminalLine]:
        drawn: list[TerminalLine] = []
        for between in dict.fromkeys(reason.between for reason in self.reasons):
            drawn.append(TerminalLine(f"{between[0]}, not {between[1]}:"))
            for reason in (reason for reason in self.reasons if reason.between == between):
                name = f"{reason.cls}: " if len(self.classes) > 1 else ""
                style = BAD if reason.grave else ""
                drawn.append(TerminalLine(f"  {name}{reason.readings:,} {reason.text}", style))
        return drawn


def _every(counts: Mapping[str, ReadingCount]) -> list[tuple[str, ReadingCount | None]]:
    return [(stage, counts.get(stage)) for stage in STAGES]


def _together(columns: Sequence[Mapping[str, ReadingCount]]) -> dict[str, ReadingCount]:
    sums = {}
    for stage in STAGES:
        counts = [column[stage] for column in columns if stage in column]
        if counts:
            bound = any(count.bound for count in counts) or len(counts) < len(columns)
            sums[stage] = ReadingCount(sum(count.readings for count in counts), bound)
    return sums


def report(
    domain: str, at: datetime, seen: DomainObservation, device: str | None = None, span: str = ""
) -> WhereReport:
    """Put together what was seen."""
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


_SAID: Final = ("accepted", "stored", "refused", "dead")


def _newer(result: WhereReport, cls: str, seen: DomainObservation) -> dict[str, int]:
    """What the leaf announced of its run beyond what its ledger records at the hub say; nothing of a span of
    time, which no ledger knows."""
    ledger = (seen.leaf.ledgers if seen.leaf else {}).get(cls)
    if ledger is None or seen.tables is None or result.span:
        return dict.fromkeys(_SAID, 0)
    account = seen.tables.accounts.get((cls, str(ledger["run"])))
    recorded = {name: int(getattr(account, name)) if account else 0 for name in _SAID}
    return {name: max(0, int(ledger["readings"][name]) - recorded[name]) for name in _SAID}


def _without_tables(result: WhereReport, seen: DomainObservation, only: str | None = None) -> None:
    """What is known of the leaf's present run and of what the hub's streams still hold."""
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
    """A column for the device, before that of its domain."""
    domain = _together(list(result.classes.values()))
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
