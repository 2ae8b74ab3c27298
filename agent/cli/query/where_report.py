"""Formats `petiole where` by class and stage, with reasons. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

from agent.base.terminal import BAD, DIM, GOOD, WAITS, TerminalLine, table, wrapped
from agent.contract import Exit

STAGES: Final = ("accepted", "stored", "at the hub", "in bronze", "in readings", "quarantined")
_COLUMNS: Final = 4
"""Classes with own column; others are joined."""
_NAMED: Final = 1_000


@dataclass(frozen=True, slots=True)
class ReadingCount:
    readings: int
    bound: bool = False
    """Whether it is a lower bound."""

    def text(self) -> str:
        return f"{'≥ ' if self.bound else ''}{self.readings:,}"


@dataclass(frozen=True, slots=True)
class StageReason:
    """Why readings are between two stages."""

    between: tuple[str, str]
    """The stages."""
    cls: str
    readings: int
    text: str
    grave: bool = False
    """An unexplained loss or double."""


@dataclass(slots=True)
class WhereReport:
    domain: str
    at: datetime
    span: str = ""
    device: str | None = None
    sentence: str = ""
    """State of the leaf's link."""
    classes: dict[str, dict[str, ReadingCount]] = field(default_factory=dict)
    """Stages by class; unknown ones absent."""
    reasons: list[StageReason] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Losses in sentences."""
    explained: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    """What could not be observed."""
    failed: bool = False
    """Whether a requested part is in `unseen`."""

    @property
    def grave(self) -> bool:
        """Whether readings are lost without reason or doubled."""
        return bool(self.lost) or any(reason.grave for reason in self.reasons)

    @property
    def exit(self) -> Exit:
        if self.grave:
            return Exit.LOSS
        return Exit.UNREACHABLE if self.failed else Exit.WELL

    def verdict(self) -> str:
        """The result in one sentence."""
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
        stages = {
            cls: {stage: asdict(counts[stage]) if stage in counts else None for stage in STAGES}
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
        """Return the text in at most `most` lines."""
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
            columns = [("all classes", sum_counts([column for _, column in columns]))]
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


def sum_counts(columns: Sequence[Mapping[str, ReadingCount]]) -> dict[str, ReadingCount]:
    sums = {}
    for stage in STAGES:
        counts = [column[stage] for column in columns if stage in column]
        if counts:
            bound = any(count.bound for count in counts) or len(counts) < len(columns)
            sums[stage] = ReadingCount(sum(count.readings for count in counts), bound)
    return sums
