"""Which rows of bronze are repeats."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from hub_jobs.refine.dedup import DedupDecision, decide
from hub_jobs.tables.schemas import BRONZE
from hub_jobs.tables.seen import SeenTable
from hub_jobs.tables.spaces import ID_COLUMNS, Places
from tests.harness.examples import costly
from tests.unit.hub_jobs.refined import earlier

_SCHEMA = pa.schema([BRONZE.field(name) for name in ID_COLUMNS])
_HISTORY = ("TELEMETRY_0", "today")


def _row(seq: int, **given: Any) -> dict[str, Any]:
    plain = dict.fromkeys(ID_COLUMNS)
    source = {"source_stream": "TEL_edge-1_normal", "source_identity": "abc", "source_seq": seq}
    return {**plain, "stream": _HISTORY[0], "created": _HISTORY[1], "seq": seq, **source, **given}


def _batch(seq: int, n: int, digest: bytes = b"a", **given: Any) -> dict[str, Any]:
    return _row(seq, **{"domain": "edge-1", "class": "normal", "run": "r", "n": n, "digest": digest, **given})


def _direct(seq: int, source_seq: int, digest: bytes = b"a") -> dict[str, Any]:
    return _row(seq, domain="edge-1", source_seq=source_seq, digest=digest)


def _ids(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, _SCHEMA)


class _Bronze:
    """Rows in the order they came, refined so many at a time."""

    def __init__(self, *, forgets: bool = False) -> None:
        self.seen = SeenTable()
        self.unverified = 0
        self._rows: list[dict[str, Any]] = []
        self._forgets = forgets

    def refine(self, rows: list[dict[str, Any]]) -> tuple[set[int], set[int]]:
        """The hub sequences that are repeats, and those with other content under a known number."""
        decision: DedupDecision = decide(
            _ids(rows), Places.of(_ids(rows)), self.seen.ranges, partial(earlier, self._rows)
        )
        self.seen.add(_ids(rows))
        self._rows += [] if self._forgets else rows
        self.unverified += decision.unverified
        return (
            decision.repeated.get(_HISTORY, set()),
            set(decision.other_content.get(_HISTORY, {})),
        )


def test_a_batch_that_comes_again_is_a_repeat_in_the_same_increment_and_later() -> None:
    bronze = _Bronze()

    assert bronze.refine([_batch(1, 1), _batch(2, 2), _batch(3, 1), _batch(4, 3)]) == ({3}, set())
    assert bronze.refine([_batch(5, 2), _batch(6, 4)]) == ({5}, set())
    assert bronze.seen.numbers().ranges("batch/edge-1/normal/r") == [(1, 4)]


def test_a_known_number_with_other_content_is_told_from_a_repeat_and_its_own_repeat_is_one() -> None:
    bronze = _Bronze()

    assert bronze.refine([_batch(1, 1, b"a"), _batch(2, 1, b"b"), _batch(3, 1, b"b")]) == ({3}, {2})
    assert bronze.refine([_batch(4, 1, b"a"), _batch(5, 1, b"c")]) == ({4}, {5})


def test_the_lowest_sequence_wins_in_whatever_order_the_rows_come() -> None:
    assert _Bronze().refine([_batch(9, 1, b"b"), _batch(3, 1, b"a")]) == (set(), {9})


def test_two_classes_runs_or_domains_share_no_numbers() -> None:
    rows = [
        _batch(1, 1),
        {**_batch(2, 1), "class": "bulk"},
        _batch(3, 1, run="s"),
        _batch(4, 1, domain="edge-2"),
    ]

    assert _Bronze().refine(rows) == (set(), set())


def test_a_direct_message_on_a_sequence_that_is_used_again_is_another_message() -> None:
    bronze = _Bronze()

    assert bronze.refine([_direct(1, 7, b"a"), _direct(2, 8, b"a")]) == (set(), set())
    assert bronze.refine([_direct(3, 7, b"a"), _direct(4, 8, b"new")]) == ({3}, set())


def test_a_message_of_no_source_is_never_a_repeat() -> None:
    nowhere = {"source_stream": None, "source_identity": None, "source_seq": None, "digest": b"a"}

    assert _Bronze().refine([_row(1, **nowhere), _row(2, **nowhere)]) == (set(), set())


def test_a_number_whose_first_copy_is_gone_from_bronze_is_a_repeat_and_counted() -> None:
    bronze = _Bronze(forgets=True)
    bronze.refine([_batch(1, 1)])

    assert bronze.refine([_batch(2, 1, b"b")]) == ({2}, set())
    assert bronze.unverified == 1


def test_a_batch_on_a_sequence_that_is_used_again_is_known_by_its_own_number_alone() -> None:
    bronze = _Bronze(forgets=True)
    bronze.refine([_direct(1, 7)])

    assert bronze.refine([_batch(2, 1, source_seq=7)]) == (set(), set())
    assert bronze.unverified == 0


@given(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from([b"a", b"b"]), st.booleans()), max_size=30),
    st.integers(1, 10),
)
@costly()
def test_how_the_rows_are_cut_into_increments_changes_nothing(
    messages: list[tuple[int, bytes, bool]], cut: int
) -> None:
    rows = [
        _batch(seq, number, digest, source_seq=100 + seq) if batch else _direct(seq, number, digest)
        for seq, (number, digest, batch) in enumerate(messages, 1)
    ]
    repeated, other = _Bronze().refine(rows)

    bronze = _Bronze()
    pieces = [bronze.refine(rows[at : at + cut]) for at in range(0, len(rows), cut)]

    assert set().union(*(piece[0] for piece in pieces)) == repeated
    assert set().union(*(piece[1] for piece in pieces)) == other
    first = {(n, digest, batch) for n, digest, batch in messages if not batch}
    batches = {n for n, _, batch in messages if batch}
    assert len(rows) - len(repeated) - len(other) == len(first) + len(batches)
