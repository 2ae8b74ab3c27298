"""Defines how the job `audit` reports leaves to the hub's agent, in parts that fit NATS messages.

A part has some leaves and the common head; a report counts once all parts arrived.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from agent.contract.checks import (
    VERSION,
    ContractError,
    check_domain,
    count_of,
    field_of,
    open_record,
)

__all__ = [
    "AUDIT_FIGURES",
    "AUDIT_HOURS",
    "AuditPart",
    "AuditedHour",
    "AuditedLeaf",
    "audit_parts",
    "audited_subject",
    "parse_audit_part",
]

AUDIT_HOURS: Final = 48
"""Newest hours reported per leaf."""
AUDIT_FIGURES: Final = {
    "accepted": "Readings that the leaf had accepted, as far as the newest audit knows.",
    "in_table": "Rows of these readings in the table readings.",
    "named": "Readings that are not in the table for a reason: quarantine, dead letter, refused, discarded.",
    "missing": "Readings that were acknowledged as stored and are gone without a reason.",
    "doubled": "Readings that are in the table more than once.",
    "unexplained": "Rows that no message explains.",
}
"""Counts of `AuditedLeaf` in metrics `petiole_audit_<name>_readings`, with their help."""
_LEAVES: Final = 100
"""Leaves per part; one has up to 2 KB uncompressed."""
_PARTS: Final = 1_000
_BYTES: Final = 4 * 2**20
"""Largest unpacked part."""
_SENTENCES: Final = 10
_LONGEST: Final = 400
_WHAT: Final = "audited"


class AuditedHour(NamedTuple):
    """Readings of a leaf by sealing hour; `lost` counts batches, `on_the_way` messages announced then."""

    hour: int
    """Hours since 1970."""
    in_table: int
    named: int
    """Quarantined or dead letters."""
    pending: int
    late: int
    missing: int
    doubled: int
    lost: int
    on_the_way: int


@dataclass(frozen=True, slots=True)
class AuditedLeaf:
    """Readings of a leaf over all runs.

    `named` ones have a reason: quarantine, dead letter, refused or discarded. `open` ones have no known
    outcome. `pending` wait for `refine`, `on_the_way` for `ingest`, None if unknown. `gaps` are unexplained
    sequences.
    """

    domain: str
    accepted: int = 0
    in_table: int = 0
    named: int = 0
    open: int = 0
    pending: int = 0
    on_the_way: int | None = None
    missing: int = 0
    doubled: int = 0
    unexplained: int = 0
    gaps: int = 0
    findings: tuple[str, ...] = ()
    hours: tuple[AuditedHour, ...] = ()

    @property
    def lost(self) -> bool:
        """Whether readings are unexplained, doubled or lost without reason."""
        return bool(self.missing or self.doubled or self.unexplained or self.gaps)


_COUNTS: Final = tuple(
    field.name
    for field in fields(AuditedLeaf)
    if field.name not in ("domain", "on_the_way", "findings", "hours")
)


@dataclass(frozen=True, slots=True)
class AuditPart:
    """Part `part` (from 0) of `parts`; all share the head.

    The head is the tables' time `at` (RFC 3339), `lake`, whether contents were compared (`deep`), `lost`,
    `verdict`, and sentences without leaf.
    """

    at: str
    lake: str
    deep: bool
    lost: bool
    verdict: str
    findings: tuple[str, ...] = ()
    part: int = 0
    parts: int = 1
    leaves: tuple[AuditedLeaf, ...] = ()

    def encode(self) -> bytes:
        row = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "leaves"}
        leaves = [asdict(leaf) for leaf in self.leaves]
        return zlib.compress(json.dumps({"v": VERSION, **row, "leaves": leaves}).encode())


def audited_subject() -> str:
    """Return the subject for audit reports."""
    return "petiole.v1.audited"


def audit_parts(head: AuditPart, leaves: Iterable[AuditedLeaf]) -> Iterator[AuditPart]:
    """Split a report; keeps newest hours and first sentences."""
    whole = [_bounded(leaf) for leaf in sorted(leaves, key=lambda leaf: leaf.domain)]
    starts = range(0, max(1, len(whole)), _LEAVES)
    if len(starts) > _PARTS:
        raise ContractError(f"{_WHAT}: {len(whole)} leaves are more than {_PARTS * _LEAVES}")
    head = replace(head, verdict=head.verdict[:_LONGEST], findings=_sentences(head.findings))
    for part, start in enumerate(starts):
        yield replace(head, part=part, parts=len(starts), leaves=tuple(whole[start : start + _LEAVES]))


def _bounded(leaf: AuditedLeaf) -> AuditedLeaf:
    newest = tuple(sorted(leaf.hours)[-AUDIT_HOURS:])
    return replace(leaf, hours=newest, findings=_sentences(leaf.findings))


def _sentences(found: Sequence[str]) -> tuple[str, ...]:
    return tuple(sentence[:_LONGEST] for sentence in found[:_SENTENCES])


def parse_audit_part(data: bytes, hours_of: str | None = None) -> AuditPart:
    """Read a part; raises `ContractError`. The hours of one leaf only are read, for they are the most of
    it."""
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(data, _BYTES)
    except zlib.error as error:
        raise ContractError(f"{_WHAT}: not compressed by zlib: {error}") from None
    if not unpacking.eof:
        raise ContractError(f"{_WHAT}: cut off, or more than {_BYTES} bytes")
    row = open_record(text, _WHAT)
    part, parts = count_of(row, "part", _WHAT), count_of(row, "parts", _WHAT)
    if not part < parts <= _PARTS:
        raise ContractError(f"{_WHAT}: part {part} of {parts}")
    leaves = field_of(row, "leaves", list, _WHAT)
    return AuditPart(
        _moment(field_of(row, "at", str, _WHAT)),
        field_of(row, "lake", str, _WHAT),
        field_of(row, "deep", bool, _WHAT),
        field_of(row, "lost", bool, _WHAT),
        field_of(row, "verdict", str, _WHAT)[:_LONGEST],
        _texts(row),
        part,
        parts,
        tuple(_leaf(leaf, hours_of) for leaf in leaves),
    )


def _moment(text: str) -> str:
    try:
        if datetime.fromisoformat(text).tzinfo is not None:
            return text
    except ValueError:
        pass
    raise ContractError(f"{_WHAT}: at {text!r:.80} is not a time with an offset")


def _leaf(row: Any, hours_of: str | None) -> AuditedLeaf:
    if not isinstance(row, dict):
        raise ContractError(f"{_WHAT}: a leaf is an object, not {type(row).__name__}")
    domain = check_domain(row.get("domain"))
    what = f"{_WHAT}, {domain}"
    unknown = row.get("on_the_way") is None
    hours = field_of(row, "hours", list, what)[-AUDIT_HOURS:] if domain == hours_of else ()
    return AuditedLeaf(
        domain,
        **{name: count_of(row, name, what) for name in _COUNTS},
        on_the_way=None if unknown else count_of(row, "on_the_way", what),
        findings=_texts(row),
        hours=tuple(_hour(hour, what) for hour in hours),
    )


def _hour(row: Any, what: str) -> AuditedHour:
    width = len(AuditedHour._fields)
    # A newer sender may have added columns.
    if not isinstance(row, list) or len(row) < width:
        raise ContractError(f"{what}: an hour is {width} numbers, not {row!r:.80}")
    named = dict(zip(AuditedHour._fields, row, strict=False))
    return AuditedHour(*(count_of(named, name, what) for name in AuditedHour._fields))


def _texts(row: Mapping[str, Any]) -> tuple[str, ...]:
    return _sentences([str(text) for text in field_of(row, "findings", list, _WHAT)])
