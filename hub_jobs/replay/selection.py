"""Selects the messages that `replay` decodes and the rows it replaces. Pure.

A batch's rows are found by (domain, class, run, n), other rows by source place. Of rows with equal key and
digest one is decoded, whether in the range or not. Other content under a known batch key stays quarantined.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.tables.ranges import History
from hub_jobs.tables.spaces import BATCH_KEY, HUB_KEY, SOURCE_KEY


@dataclass(slots=True)
class ReplaySelection:
    """The messages to decode and rows to replace."""

    decoded: dict[History, set[int]] = field(default_factory=dict)
    """Sequences to decode by history."""
    batches: set[str] = field(default_factory=set)
    """Batch keys whose readings are replaced."""
    places: set[str] = field(default_factory=set)
    """Direct message keys whose readings are replaced."""
    messages: set[str] = field(default_factory=set)
    """Messages whose quarantine rows are replaced."""
    thinned: int = 0
    """Unchanged messages, without payload or too old."""


def select(wanted: pa.Table, held: pa.Table, other_content: set[str]) -> ReplaySelection:
    """Select for the rows `wanted`. `held` has all refined rows with their keys, including `wanted`.

    Both have the key columns, `digest` and `thinned`. `other_content` has messages (`keys` of `HUB_KEY`)
    quarantined for other content.
    """
    selection = ReplaySelection()
    names = set(keys(wanted, HUB_KEY).to_pylist())
    mine = set(keys(wanted, BATCH_KEY).to_pylist()) | _places(wanted)
    groups: dict[str, dict[bytes, list[dict[str, object]]]] = {}
    for row, batch, place, message in zip(
        held.to_pylist(),
        keys(held, BATCH_KEY).to_pylist(),
        keys(held, SOURCE_KEY).to_pylist(),
        keys(held, HUB_KEY).to_pylist(),
        strict=True,
    ):
        key = place if batch is None else batch
        if key in mine and key is not None and message not in other_content:
            groups.setdefault(key, {}).setdefault(row["digest"], []).append({**row, "message": message})
    for key, digests in groups.items():
        _choose(selection, key, digests, names)
    return selection


def _choose(
    selection: ReplaySelection, key: str, digests: dict[bytes, list[dict[str, object]]], wanted: set[str]
) -> None:
    copies = [sorted(same, key=lambda row: row["message"] not in wanted) for same in digests.values()]
    # A later copy may have a payload, but not bring back what was deleted.
    aged = any(row.get("aged") for same in copies for row in same)
    if aged or any(all(row["thinned"] for row in same) for same in copies):
        selection.thinned += len(copies)
        return
    for same in copies:
        row = next(row for row in same if not row["thinned"])
        history = (str(row["stream"]), str(row["created"]))
        selection.decoded.setdefault(history, set()).add(int(str(row["seq"])))
        selection.messages.update(str(copy["message"]) for copy in same)
    (selection.places if copies[0][0]["n"] is None else selection.batches).add(key)


def keys(rows: pa.Table, columns: tuple[str, ...]) -> pa.Array:
    """Return a key text per row, null when a part is null."""
    parts = [rows[name].cast(pa.string()) for name in columns]
    joined = pc.binary_join_element_wise(*parts, "\x1f", null_handling="emit_null")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def _places(rows: pa.Table) -> set[str]:
    return set(keys(rows.filter(pc.is_null(rows["n"])), SOURCE_KEY).to_pylist())
