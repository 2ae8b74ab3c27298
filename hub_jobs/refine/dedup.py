"""Which rows of bronze say again what an earlier one said, decided on rows of bronze before a payload is
opened. Pure.

A batch is known by (domain, class, run, n): with the same digest it is a repeat, with another one it goes
to quarantine. Any other message is known by (source stream, identity, sequence, digest): sequences are used
again after a stream was restored, so other content is another message. The lowest hub sequence wins. Ranges
of what was seen find the candidates, which are few; the digests of the earlier rows decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hub_jobs.tables.ranges import History, contains
from hub_jobs.tables.seen import Placed, SeenNumbers, by_batch, by_source

Key = tuple[str, int]
"""A space and a number in it."""
Digests = Mapping[Key, set[bytes]]
Earlier = Callable[[str, int, int], Digests]
"""Of a space, the digests of the rows that were refined before, by key, for numbers from and to."""


@dataclass(slots=True)
class DedupDecision:
    """What of some rows of bronze is not to be decoded, by history and hub sequence. `unverified` counts
    repeats whose first copy bronze no longer has, so that only their number speaks for it."""

    repeated: dict[History, set[int]] = field(default_factory=dict)
    other_content: dict[History, dict[int, str]] = field(default_factory=dict)
    unverified: int = 0


def decide(ids: pa.Table, seen: SeenNumbers, earlier: Earlier) -> DedupDecision:
    """Judge rows of bronze with `ID_COLUMNS`; `seen` and `earlier` know all rows that were refined before."""
    ids = ids.sort_by([("stream", "ascending"), ("created", "ascending"), ("seq", "ascending")])
    decision = DedupDecision()
    batches, others = by_batch(ids), by_source(ids)
    others = Placed(others.names, np.where(batches.codes < 0, others.codes, -1), others.numbers)
    for placed, is_batch in ((batches, True), (others, False)):
        known = _known(placed, seen)
        candidates = np.flatnonzero(known | _twice(placed))
        before = _digests(placed, np.flatnonzero(known), earlier)
        _judge(ids, placed, candidates, known, before, decision, is_batch=is_batch)
    return decision


def _known(placed: Placed, seen: SeenNumbers) -> npt.NDArray[np.bool_]:
    """Rows whose number was seen before."""
    found = np.zeros(placed.codes.size, dtype=np.bool_)
    for code, name in enumerate(placed.names):
        if seen.ranges(name):
            rows = np.flatnonzero(placed.codes == code)
            found[rows] = contains(seen.ranges(name), placed.numbers[rows])
    return found


def _twice(placed: Placed) -> npt.NDArray[np.bool_]:
    """Rows whose number is there more than once."""
    order = np.lexsort((placed.numbers, placed.codes))
    codes, numbers = placed.codes[order], placed.numbers[order]
    same = (codes[1:] == codes[:-1]) & (numbers[1:] == numbers[:-1]) & (codes[1:] >= 0)
    found = np.zeros(codes.size, dtype=np.bool_)
    found[order[1:][same]] = True
    found[order[:-1][same]] = True
    return found


def _digests(placed: Placed, rows: npt.NDArray[np.int64], earlier: Earlier) -> dict[Key, set[bytes]]:
    found: dict[Key, set[bytes]] = {}
    for code in np.unique(placed.codes[rows]).tolist():
        numbers = placed.numbers[rows[placed.codes[rows] == code]]
        found.update(earlier(placed.names[code], int(numbers.min()), int(numbers.max())))
    return found


def _judge(
    ids: pa.Table,
    placed: Placed,
    candidates: npt.NDArray[np.int64],
    known: npt.NDArray[np.bool_],
    before: dict[Key, set[bytes]],
    decision: DedupDecision,
    *,
    is_batch: bool,
) -> None:
    """Go through the candidates, a few of all rows, in the order of their sequences."""
    rows = ids.select(["stream", "created", "seq", "digest"]).take(pa.array(candidates)).to_pylist()
    for at, row in zip(candidates.tolist(), rows, strict=True):
        key = (placed.names[placed.codes[at]], int(placed.numbers[at]))
        history = (row["stream"], row["created"])
        digests = before.setdefault(key, set())
        if known[at] and not digests:
            decision.unverified += 1
            decision.repeated.setdefault(history, set()).add(row["seq"])
            continue
        if row["digest"] in digests:
            decision.repeated.setdefault(history, set()).add(row["seq"])
        elif digests and is_batch:
            decision.other_content.setdefault(history, {})[row["seq"]] = (
                f"number {key[1]} of {key[0]} came before with other content"
            )
        digests.add(row["digest"])
