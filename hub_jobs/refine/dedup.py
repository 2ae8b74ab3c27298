"""Which rows of bronze say again what an earlier one said, decided on rows of bronze before a payload is
opened. Pure.

A batch is known by (domain, class, run, n): with the same digest it is a repeat, with another one it goes
to quarantine. Any other message is known by (source stream, identity, sequence, digest): sequences are used
again after a stream was restored, so other content is another message. The lowest hub sequence wins. Ranges
of what was seen find the candidates, which are few; the digests of the earlier rows decide.
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
    """Numbers, each in the space whose name has the place of its code; of batches or of other messages."""

    names: Sequence[str]
    numbers: CodedNumbers
    are_batches: bool


class EarlierRows(NamedTuple):
    """Rows that were refined before under wanted numbers: the place of the number among those wanted, and the
    digest."""

    places: Numbers
    digests: pa.Array


Known = Callable[[Sequence[str]], CodedRanges]
"""The numbers that were seen in these spaces; the code of each is its place among them."""
Earlier = Callable[[Wanted], EarlierRows]


@dataclass(slots=True)
class DedupDecision:
    """What of some rows of bronze is not to be decoded, by history and hub sequence. `unverified` counts
    repeats whose first copy bronze no longer has, so that only their number speaks for it."""

    repeated: dict[History, set[int]] = field(default_factory=dict)
    other_content: dict[History, dict[int, str]] = field(default_factory=dict)
    unverified: int = 0


def decide(ids: pa.Table, places: Places, known: Known, earlier: Earlier) -> DedupDecision:
    """Judge rows of bronze with `ID_COLUMNS` and their places; `known` and `earlier` are about all rows that
    were refined before."""
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
    """Rows whose number is there more than once."""
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
    """The rows in the order of their histories and sequences."""
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
    """Judge the candidates among the rows, which are in the order of their sequences."""
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
    """Which rows have a value that none before them has."""
    found = np.zeros(values.size, dtype=np.bool_)
    found[np.unique(values, return_index=True)[1]] = True
    return found


def _sequences(ids: pa.Table, rows: Numbers) -> dict[History, list[int]]:
    """The hub sequences of rows, by history."""
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
