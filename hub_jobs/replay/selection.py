"""Which rows of bronze are to be decoded again, and which rows of the other tables go for it. Pure.

What came of a message is found by its key: a batch's by (domain, class, run, n), any other's by its place
in its source. Of several rows of one key with one digest one is decoded, whichever of them lies in the range
that was asked for. A message with other content under a known batch's id stays where it is, in quarantine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

BATCH = ("domain", "class", "run", "n")
PLACE = ("source_stream", "source_identity", "source_seq")
MESSAGE = ("stream", "created", "seq")

History = tuple[str, str]


@dataclass(slots=True)
class Again:
    """Sequences to decode, by stream and incarnation; keys whose readings are replaced; messages whose rows
    in quarantine are."""

    decoded: dict[History, set[int]] = field(default_factory=dict)
    batches: set[str] = field(default_factory=set)
    places: set[str] = field(default_factory=set)
    messages: set[str] = field(default_factory=set)
    thinned: int = 0
    """Messages that were left as they are, for their payload was dropped."""


def keys(rows: pa.Table, columns: tuple[str, ...]) -> pa.Array:
    """One text a row that names its key, null where a part of it is null."""
    parts = [rows[name].cast(pa.string()) for name in columns]
    joined = pc.binary_join_element_wise(*parts, "\x1f", null_handling="emit_null")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def chosen(wanted: pa.Table, held: pa.Table, other_content: set[str]) -> Again:
    """What to decode again for the rows `wanted`. `held` are all rows of bronze that are refined and have one
    of their keys, `wanted` among them; both with the key columns, `digest` and `thinned`. `other_content`
    names messages (`keys` of `MESSAGE`) that are in quarantine for it."""
    again = Again()
    names = set(keys(wanted, MESSAGE).to_pylist())
    mine = set(keys(wanted, BATCH).to_pylist()) | _places(wanted)
    groups: dict[str, dict[bytes, list[dict[str, object]]]] = {}
    for row, batch, place, message in zip(
        held.to_pylist(),
        keys(held, BATCH).to_pylist(),
        keys(held, PLACE).to_pylist(),
        keys(held, MESSAGE).to_pylist(),
        strict=True,
    ):
        key = place if batch is None else batch
        if key in mine and key is not None and message not in other_content:
            groups.setdefault(key, {}).setdefault(row["digest"], []).append({**row, "message": message})
    for key, digests in groups.items():
        _choose(again, key, digests, names)
    return again


def _places(rows: pa.Table) -> set[str]:
    return set(keys(rows.filter(pc.is_null(rows["n"])), PLACE).to_pylist())


def _choose(again: Again, key: str, digests: dict[bytes, list[dict[str, object]]], wanted: set[str]) -> None:
    copies = [sorted(rows, key=lambda row: row["message"] not in wanted) for rows in digests.values()]
    if any(all(row["thinned"] for row in rows) for rows in copies):
        again.thinned += len(copies)
        return
    for rows in copies:
        row = next(row for row in rows if not row["thinned"])
        history = (str(row["stream"]), str(row["created"]))
        again.decoded.setdefault(history, set()).add(int(str(row["seq"])))
        again.messages.update(str(one["message"]) for one in rows)
    (again.places if copies[0][0]["n"] is None else again.batches).add(key)
