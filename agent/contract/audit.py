"""What the job `audit` found of each leaf, as it tells the hub's agent.

A report goes in several parts, for a message of NATS is small: each has the leaves of a stretch of the
alphabet, and what holds of the whole audit. The agent takes a report once all of its parts have come.
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
"""How many hours of a leaf an audit reports, the newest ones."""
AUDIT_FIGURES: Final = {
    "accepted": "Readings that the leaf had accepted, as far as the newest audit knows.",
    "in_table": "Rows of these readings in the table readings.",
    "named": "Readings that are not in the table for a reason: quarantine, dead letter, refused, discarded.",
    "missing": "Readings that were acknowledged as stored and are gone without a reason.",
    "doubled": "Readings that are in the table more than once.",
    "unexplained": "Rows that no message explains.",
}
"""The counts of `AuditedLeaf` that are metrics `petiole_audit_<name>_readings`, and what they say."""
_LEAVES: Final = 100
"""Of one part. A leaf with all its hours takes some 2 KB before it is compressed."""
_PARTS: Final = 1_000
_BYTES: Final = 4 * 2**20
"""The most that a part may unpack to."""
_SENTENCES: Final = 10
_LONGEST: Final = 400
_WHAT: Final = "audited"


class AuditedHour(NamedTuple):
    """Readings of a leaf that were sealed in one hour; `lost` are batches that never came, `on_the_way`
    messages that the leaf announced in that hour."""

    hour: int
    """Hours since 1970."""
    in_table: int
    named: int
    """In quarantine, or dead letters."""
    pending: int
    late: int
    missing: int
    doubled: int
    lost: int
    on_the_way: int


@dataclass(frozen=True, slots=True)
class AuditedLeaf:
    """A leaf in readings, over all its runs. `named` ones are not in the table, and each has a reason:
    quarantine, dead letter, refused or discarded; `open` ones were accepted and not yet known as stored.
    `pending` wait for `refine`, `on_the_way` for `ingest`: None where that is not known. `gaps` are sequences
    of its streams that are gone without a reason."""

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
        """Whether something of it is gone without a reason, doubled, or not explained."""
        return bool(self.missing or self.doubled or self.unexplained or self.gaps)


_COUNTS: Final = tuple(
    field.name
    for field in fields(AuditedLeaf)
    if field.name not in ("domain", "on_the_way", "findings", "hours")
)


@dataclass(frozen=True, slots=True)
class AuditPart:
    """A part of a report, `part` of so many `parts`, counted from 0. All parts of one report have the same
    head: when the tables were opened (`at`, RFC 3339), where the `lake` is, whether contents were compared
    (`deep`), whether anything is `lost`, the `verdict`, and sentences that are of no leaf."""

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
    """Where `audit` tells the registrar what it found."""
    return "petiole.v1.audited"


def audit_parts(head: AuditPart, leaves: Iterable[AuditedLeaf]) -> Iterator[AuditPart]:
    """A report in parts; what is too long for one is cut, the newest hours and the first sentences stay."""
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
