"""Compares one device's readings in its domain's batches with readings and quarantine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.audit.rows import lookups
from hub_jobs.audit.rows.hours import moments as moments_of
from hub_jobs.audit.rows.scan import AuditTables
from hub_jobs.refine.messages import QuarantineReason
from hub_jobs.tables.scan import Condition, batches
from hub_jobs.tables.spaces import BATCH_KEY, HUB_KEY, SOURCE_KEY, key_of
from hub_jobs.times import at_micros

MOST: Final = 2_000_000
"""Most readings decoded, some ten seconds of work."""

_AT_ONCE: Final = 4_096
_COLUMNS: Final = (
    *(*HUB_KEY, "arrived", "subject", "headers", "payload", "digest"),
    *(*SOURCE_KEY, *BATCH_KEY, "count"),
)


@dataclass(slots=True)
class DeviceCounts:
    """Readings of a device.

    `quarantined` lines name the device; `unnamed` ones have no readable device. `missing` and `doubled`
    compare bronze with readings. `thinned` counts messages without payload; `cut` means that only `MOST`
    readings were decoded.
    """

    in_bronze: int = 0
    pending: int = 0
    in_readings: int = 0
    quarantined: int = 0
    unnamed: int = 0
    missing: int = 0
    doubled: int = 0
    thinned: int = 0
    cut: bool = False


def count_device(tables: AuditTables, device: str) -> DeviceCounts:
    """Count the readings of a device."""
    found = DeviceCounts()
    read = _read(tables, device)
    for excerpt, reason in refused(tables):
        named = _named(excerpt) if reason == str(QuarantineReason.LINE) else None
        found.quarantined += named == device
        found.unnamed += named is None and reason != str(QuarantineReason.OTHER_CONTENT)
    decoded = 0
    seen: set[tuple[Any, ...]] = set()
    missing: dict[tuple[Any, ...], int] = {}
    for row, ready in _messages(tables):
        key = key_of(row)
        if key in seen:
            continue
        seen.add(key)
        there = read.pop(key, 0)
        found.in_readings += there
        if row["payload"] is None or row["arrived"] < tables.kept_since:
            found.thinned += 1
            continue
        if decoded >= MOST:
            found.cut = True
            break
        held, of_device = _decoded(row, device)
        decoded += held
        found.in_bronze += of_device
        if not ready:
            found.pending += of_device
            continue
        if of_device > there:
            missing[key] = of_device - there
        found.doubled += max(0, there - of_device)
    if missing and tables.kept_since:
        for key in _aged(tables):
            missing.pop(key, None)
    found.missing = sum(missing.values())
    return found


def _aged(tables: AuditTables) -> Iterator[tuple[Any, ...]]:
    """Yield messages from before the expiry limit, whose readings may be deleted."""
    before: Condition = ("arrived", "<", at_micros(tables.kept_since))
    columns = (*BATCH_KEY, *SOURCE_KEY)
    for piece in batches(tables.bronze, columns, [*tables.part.where, before]):
        yield from map(key_of, piece.to_pylist())


def _read(tables: AuditTables, device: str) -> dict[tuple[Any, ...], int]:
    """Return the device's readings per batch or place."""
    found: dict[tuple[Any, ...], int] = {}
    if tables.readings is None:
        return found
    columns = ["device", *BATCH_KEY, *SOURCE_KEY]
    for piece in batches(tables.readings, columns, tables.part.where):
        for row in piece.filter(pc.field("device") == device).to_pylist():
            key = key_of(row)
            found[key] = found.get(key, 0) + 1
    return found


def refused(tables: AuditTables) -> Iterator[tuple[bytes | None, str]]:
    """Yield quarantine by arrival: the beginning and the reason."""
    if tables.quarantine is None:
        return
    for piece in batches(tables.quarantine, ["excerpt", "reason", "arrived"], tables.part.where):
        columns = [piece["excerpt"], piece["reason"], piece["arrived"].cast(pa.int64())]
        for excerpt, reason, arrived in zip(*(column.to_pylist() for column in columns), strict=True):
            if tables.part.within(arrived):
                yield excerpt, reason


def _messages(tables: AuditTables) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield bronze messages that may hold readings, and whether each is refined."""
    for piece in batches(tables.bronze, _COLUMNS, tables.part.where, _AT_ONCE):
        moments, _ = moments_of(piece)
        for row, moment in zip(lookups.refinable(piece), moments.tolist(), strict=True):
            if row["class"] is not None and tables.part.within(moment):
                yield row, row["seq"] <= tables.offsets.get((row["stream"], row["created"]), 0)


def _decoded(row: dict[str, Any], device: str) -> tuple[int, int]:
    """Return a message's readings, and those of the device."""
    readings = lookups.decoded(row)
    return readings.num_rows, pc.sum(pc.equal(readings["device"], device)).as_py() or 0


def _named(excerpt: bytes | None) -> str | None:
    try:
        line = json.loads(excerpt or b"")
    except (ValueError, RecursionError):
        return None
    device = line.get("device") if isinstance(line, dict) else None
    return device if isinstance(device, str) else None
