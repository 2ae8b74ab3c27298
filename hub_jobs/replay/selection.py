"""Which messages `replay` decodes again, and what of the tables that replaces. Pure.

What came of a message is found by its key: a batch's by (domain, class, run, n), any other's by its place
in its source. Of several rows of one key with one digest one is decoded, whichever of them lies in the range
that was asked for. A message with other content under a known batch's id stays where it is, in quarantine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.tables.ranges import History
from hub_jobs.tables.spaces import BATCH_KEY, HUB_KEY, SOURCE_KEY


@dataclass(slots=True)
class ReplaySelection:
    """What is decoded again, and what it replaces."""

    decoded: dict[History, set[int]] = field(default_factory=dict)
    """Sequences to decode, by the history of their stream."""
    batches: set[str] = field(default_factory=set)
    """Keys of batches whose readings are replaced."""
    places: set[str] = field(default_factory=set)
    """Keys of direct messages whose readings are replaced."""
    messages: set[str] = field(default_factory=set)
    """Messages whose rows in quarantine are replaced."""
    thinned: int = 0
    """Messages that stay as they are, because their payload was dropped or they are too old."""


def select(wanted: pa.Table, held: pa.Table, other_content: set[str]) -> ReplaySelection:
    """Select what to decode for the rows `wanted`. `held` are all refined rows of bronze with one of their
    keys, `wanted` among them; both have the key columns, `digest` and `thinned`. `other_content` names the
    messages (`keys` of `HUB_KEY`) that are in quarantine for it."""
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
    """One text a row that names its key, null where a part of it is null."""
    parts = [rows[name].cast(pa.string()) for name in columns]
    joined = pc.binary_join_element_wise(*parts, "\x1f", null_handling="emit_null")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def _places(rows: pa.Table) -> set[str]:
    return set(keys(rows.filter(pc.is_null(rows["n"])), SOURCE_KEY).to_pylist())
