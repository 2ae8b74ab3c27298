"""By which columns rows name a message, and rows of bronze by the spaces in which they have a number (see
`seen`): the batches of a run, the sequences of a source, and one history of a stream of the hub. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.tables.grouping import different_rows, plain_texts
from hub_jobs.tables.ranges import History, Mask, Numbers

BATCH: Final = ("domain", "class", "run")
SOURCE: Final = ("source_stream", "source_identity")
HISTORY: Final = ("stream", "created")
BATCH_KEY: Final = (*BATCH, "n")
"""Names a batch."""
SOURCE_KEY: Final = (*SOURCE, "source_seq")
"""The place of a message in its leaf's stream."""
HUB_KEY: Final = (*HISTORY, "seq")
"""The place of a message in the hub's stream."""


def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """By which key a row of bronze or of readings says of which message it is."""
    return tuple(row[name] for name in (SOURCE_KEY if row["n"] is None else BATCH_KEY))


def upto(rows: pa.Table, offsets: Mapping[History, int]) -> Mask:
    """Which rows stand in the hub's stream up to the sequence that is given for its history; none of a
    history without one."""
    columns = [rows[name] for name in HISTORY]
    first, which = different_rows(columns)
    histories = zip(*(column.take(pa.array(first)).to_pylist() for column in columns), strict=True)
    ends = np.array([offsets.get((stream, created), -1) for stream, created in histories], dtype=np.int64)
    mask: Mask = pc.fill_null(rows["seq"], 0).to_numpy() <= ends[which]
    return mask


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows in spaces: `names` of the spaces, and for every row the index of its space and its number there.
    A row that has no place has the index -1."""

    names: list[str]
    codes: Numbers
    numbers: Numbers


class Places(NamedTuple):
    """Rows of bronze in all their spaces."""

    batches: Placed
    sources: Placed
    hub: Placed

    @staticmethod
    def of(ids: pa.Table) -> Places:
        """Those of rows with the `ID_COLUMNS`."""
        return Places(by_batch(ids), by_source(ids), _by_hub(ids))


def by_batch(ids: pa.Table) -> Placed:
    """Batches by their number in their run."""
    return _placed(ids, "batch", BATCH_KEY)


def by_source(ids: pa.Table) -> Placed:
    """All messages by their sequence in the stream they were sourced from. Of two streams of one name the
    identity differs."""
    return _placed(ids, "source", SOURCE_KEY)


def _by_hub(ids: pa.Table) -> Placed:
    return _placed(ids, "hub", HUB_KEY)


def _placed(ids: pa.Table, kind: str, key: tuple[str, ...]) -> Placed:
    *columns, number = key
    has_place = pc.is_valid(ids[number]).to_numpy()
    for name in columns:
        has_place &= pc.is_valid(ids[name]).to_numpy()
    rows = np.flatnonzero(has_place)
    found = ids.select(columns) if has_place.all() else ids.select(columns).take(pa.array(rows))
    first, which = different_rows(found.columns)
    placed = np.full(ids.num_rows, -1, dtype=np.int64)
    placed[rows] = which
    parts = plain_texts(found.take(pa.array(first))).columns
    names = pc.binary_join_element_wise(kind, *parts, "/").to_pylist()
    return Placed(names, placed, pc.fill_null(ids[number], 0).to_numpy())
