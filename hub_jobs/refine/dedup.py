"""Finds repeats among rows of bronze before payloads are opened. Pure.

A batch's key is (domain, class, run, n): an equal digest makes a repeat, another digest goes to quarantine.
Other messages have the key (source stream, identity, sequence, digest), because restored streams reuse
sequences. The lowest hub sequence wins. Seen ranges find candidates; digests of earlier rows decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from hub_jobs.tables.grouping import different_rows, plain_texts
from hub_jobs.tables.ranges import CodedNumbers, CodedRanges, History, Keys, Mask, Numbers
from hub_jobs.tables.spaces import Placed, Places


class Wanted(NamedTuple):
    """Numbers in spaces, coded by position; batches or other messages."""

    names: Sequence[str]
    numbers: CodedNumbers
    are_batches: bool


class EarlierRows(NamedTuple):
    """Refined rows with wanted numbers: position among the wanted, and digest."""

    places: Numbers
    digests: pa.Array


Known = Callable[[Sequence[str]], CodedRanges]
"""The seen numbers of spaces, coded by position."""
Earlier = Callable[[Wanted], EarlierRows]


@dataclass(slots=True)
class DedupDecision:
    """Rows not to decode, by history and hub sequence. `unverified` counts repeats by number alone, whose
    first copy is gone.
    """

    repeated: dict[History, set[int]] = field(default_factory=dict)
    other_content: dict[History, dict[int, str]] = field(default_factory=dict)
    unverified: int = 0


def decide(ids: pa.Table, places: Places, known: Known, earlier: Earlier) -> DedupDecision:
    """Judge rows of bronze (`ID_COLUMNS`) with their places, given all earlier refined rows."""
    decision = DedupDecision()
    batches, others = places.batches, places.sources
    others = Placed(others.names, np.where(batches.codes < 0, others.codes, -1), others.numbers)
    for placed, are_batches in ((batches, True), (others, False)):
        has_place = np.flatnonzero(placed.codes >= 0)
        codes, numbers = placed.codes[has_place], placed.numbers[has_place]
        seen = known(placed.names).contains(codes, numbers)
        candidates = has_place[seen | _twice(codes, numbers)]
        if candidates.size:
            candidates = _in_order(ids, candidates)
            wanted = Wanted(placed.names, _numbers(placed, has_place[seen]), are_batches)
            _judge(ids, placed, candidates, wanted, earlier(wanted), decision)
    return decision


def _numbers(placed: Placed, rows: Numbers) -> CodedNumbers:
    return CodedNumbers(placed.codes[rows], placed.numbers[rows])


def _twice(codes: Numbers, numbers: Numbers) -> Mask:
    packed = Keys.of(codes, numbers)
    if packed is not None and np.diff(packed.in_order()).all():
        return np.zeros(codes.size, dtype=np.bool_)
    order = np.lexsort((numbers, codes))
    same = (np.diff(codes[order]) == 0) & (np.diff(numbers[order]) == 0)
    found = np.zeros(codes.size, dtype=np.bool_)
    found[order[1:][same]] = True
    found[order[:-1][same]] = True
    return found


def _in_order(ids: pa.Table, rows: Numbers) -> Numbers:
    picked = ids.select(["stream", "created", "seq"]).take(pa.array(rows))
    first, which = different_rows([picked["stream"], picked["created"]])
    histories = picked.select(["stream", "created"]).take(pa.array(first)).to_pylist()
    by_name = sorted(range(first.size), key=lambda at: (histories[at]["stream"], histories[at]["created"]))
    rank = np.empty_like(first)
    rank[by_name] = np.arange(first.size)
    return rows[np.lexsort((picked["seq"].to_numpy(), rank[which]))]


def _judge(
    ids: pa.Table,
    placed: Placed,
    rows: Numbers,
    seen: Wanted,
    earlier: EarlierRows,
    decision: DedupDecision,
) -> None:
    every = _numbers(placed, rows)
    keys = every.places(placed.codes[rows], placed.numbers[rows])
    keys_before = every.places(seen.numbers.codes, seen.numbers.numbers)
    digests = ids["digest"].take(pa.array(rows)).combine_chunks()
    contents = pa.concat_arrays([earlier.digests.cast(digests.type), digests]).dictionary_encode("encode")
    content = contents.indices.to_numpy().astype(np.int64)
    kinds = len(contents.dictionary)
    pairs_before = keys_before[earlier.places] * kinds + content[: earlier.places.size]
    pairs = keys * kinds + content[earlier.places.size :]

    came_before = np.isin(np.arange(every.codes.size), keys_before[earlier.places])[keys]
    was_seen = np.isin(np.arange(every.codes.size), keys_before)[keys]
    unverified = was_seen & ~came_before
    repeated = unverified | np.isin(pairs, pairs_before) | ~_first(pairs)
    decision.unverified += int(np.count_nonzero(unverified))
    for history, sequences in _sequences(ids, rows[repeated]).items():
        decision.repeated.setdefault(history, set()).update(sequences)
    if seen.are_batches:
        other = ~repeated & (came_before | ~_first(keys))
        _name_other_content(ids, placed, rows[other], decision)


def _first(values: Numbers) -> Mask:
    """Mark first occurrences of values."""
    found = np.zeros(values.size, dtype=np.bool_)
    found[np.unique(values, return_index=True)[1]] = True
    return found


def _sequences(ids: pa.Table, rows: Numbers) -> dict[History, list[int]]:
    picked = plain_texts(ids.select(["stream", "created", "seq"]).take(pa.array(rows)))
    grouped = picked.group_by(["stream", "created"]).aggregate([("seq", "list")])
    columns = (grouped[name].to_pylist() for name in ("stream", "created", "seq_list"))
    return {(stream, created): sequences for stream, created, sequences in zip(*columns, strict=True)}


def _name_other_content(ids: pa.Table, placed: Placed, rows: Numbers, decision: DedupDecision) -> None:
    picked = ids.select(["stream", "created", "seq"]).take(pa.array(rows)).to_pylist()
    for at, row in zip(rows.tolist(), picked, strict=True):
        decision.other_content.setdefault((row["stream"], row["created"]), {})[row["seq"]] = (
            f"number {placed.numbers[at]} of {placed.names[placed.codes[at]]} came before with other content"
        )
