"""What stood at the end of a store that an older copy replaced, by what arrived and what records say."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.contract import Ledger, LostStream, Readings, StreamState
from agent.contract.ranges import Range
from hub_jobs.audit import stream_gaps
from hub_jobs.audit.bronze_contents import BronzeContents
from hub_jobs.audit.ledgers import LedgerClaims, LedgerRecords, LostEnd, LostStores
from hub_jobs.tables import seen, stream_history
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.gap_notes import GapReason
from hub_jobs.times import at_micros
from tests.spark.lakes import add_bronze
from tests.unit.hub_jobs.audit.test_gap_reasons import ORIGIN, SOURCE, gaps
from tests.unit.hub_jobs.rows import RUN, direct_row

Store = tuple[int, int, int]
"""What came of a store: its first and last sequence, and how much later than its number each arrived."""
OLD = (1, 7, 0)
FIRST, SECOND = 1_763_000_000_123_456_789, 1_763_000_600_000_000_000
"""When the stores that two copies replaced were seen last, in nanoseconds since 1970."""
ENDS = [LostStream("made", 9, 3, FIRST), LostStream("made", 9, 3, SECOND)]


def _arrivals(where: Path, *rows: tuple[int, bytes, int]) -> None:
    """Bronze of one source: of each message its sequence there, its payload, and when it arrived."""
    made = [direct_row(payload, source_seq=seq, arrived=at) for seq, payload, at in rows]
    add_bronze(where, [{**row, "seq": seq} for seq, row in enumerate(made, 1)], numbered=True)


def _came(where: Path, *stores: Store) -> None:
    """Bronze of one source whose store was replaced again and again."""
    _arrivals(
        where,
        *(
            (seq, b"%d of %d" % (seq, number), later + seq)
            for number, (first, last, later) in enumerate(stores)
            for seq in range(first, last + 1)
        ),
    )


def _ends(*ends: tuple[int, int, int, int]) -> LostStores:
    """Stores that were replaced: what the older one held, what the newer had held, and where the first record
    stands that knows of it: when it arrived, and its sequence."""
    return LostStores(
        tails={LostEnd(ORIGIN, kept, last): {SOURCE: (at, seq)} for kept, last, at, seq in ends}
    )


def _heard(*records: tuple[int, int, list[LostStream]]) -> LostStores:
    """What ledger records say of lost stores: of each, when it arrived, its sequence, and what it says."""
    gathered = LedgerRecords()
    for at, seq, said in records:
        record = Ledger(*ORIGIN[:2], RUN, 0, (), Readings(), StreamState("made", 1, seq), lost=tuple(said))
        place = {"stream": "TELEMETRY_0", "seq": seq, "arrived": at_micros(at)}
        source = {"source_stream": SOURCE[0], "source_identity": SOURCE[1], "source_seq": seq}
        named = {"payload": record.encode(), "domain": record.domain, "class": record.cls}
        gathered.add({**named, **place, **source})
    assert not gathered.unusable
    return gathered.lost


@pytest.mark.parametrize("record", [4, 6, 9, 12])
@pytest.mark.parametrize(
    ("before", "gone"),
    [(3, [(4, 9)]), (5, [(6, 9)]), (9, [])],
    ids=["the older store held all that the hub did", "the hub held more", "the hub held all"],
)
def test_what_stood_only_in_a_store_that_an_older_one_replaced_is_named(
    tmp_path: Path, before: int, gone: list[Range], record: int
) -> None:
    _came(tmp_path, (1, before, 0), (4, 12, 100))

    expected = [("source", gone, GapReason.STORE_LOST, True)] if gone else []
    assert gaps(tmp_path, lost=_ends((3, 9, 100 + record, record))) == expected


@pytest.mark.parametrize(
    ("stores", "lost", "gone"),
    [
        pytest.param(
            [OLD, (4, 6, 100), (5, 9, 200)],
            _ends((3, 8, 104, 4), (4, 7, 205, 5)),
            [[(7, 8)]],
            id="two, one after the other, each with an end of its own",
        ),
        pytest.param(
            [(1, 8, 0), (3, 12, 100)],
            _ends((3, 9, 103, 3), (2, 6, 103, 3)),
            [[(4, 6), (9, 9)]],
            id="two before any record, and of the second, which ended at 6, nothing came",
        ),
        pytest.param(
            [OLD, (4, 7, 100), (5, 11, 200)],
            _ends((3, 7, 106, 6), (4, 8, 207, 7), (5, 6, 207, 7)),
            [[(6, 6), (8, 8)]],
            id="two of which one record tells: the first may have held the record before",
        ),
        pytest.param(
            [OLD, (4, 7, 100), (4, 5, 200), (4, 12, 300)],
            _ends((3, 9, 106, 6), (3, 8, 307, 7), (3, 7, 307, 7)),
            [[(6, 9)]],
            id="two of which one record tells: the first came up to the record before",
        ),
        *(
            pytest.param(
                [OLD, (4, 5, 100), (4, 12, 200)], _heard(*told), [[(8, 9)], [(6, 9)]], id=f"one twice, {name}"
            )
            for name, told in {
                "records in order": [(104, 4, ENDS[:1]), (204, 4, ENDS)],
                "records the other way round": [(204, 4, ENDS), (104, 4, ENDS[:1])],
            }.items()
        ),
        pytest.param(
            [OLD, (4, 12, 200)], _heard((204, 4, ENDS)), [[(4, 9)]] * 2, id="one twice before any record"
        ),
    ],
)
def test_of_each_store_that_was_replaced_what_never_came_is_named(
    tmp_path: Path, stores: list[Store], lost: LostStores, gone: list[list[Range]]
) -> None:
    _came(tmp_path, *stores)

    assert gaps(tmp_path, lost=lost) == [("source", ranges, GapReason.STORE_LOST, True) for ranges in gone]


def test_what_the_new_store_has_not_sent_yet_does_not_stand_for_the_old(tmp_path: Path) -> None:
    _arrivals(tmp_path, *((seq, b"old", 1) for seq in (1, 2, 3, 4, 7, 8)), (4, b"new", 9), (5, b"new", 9))

    assert gaps(tmp_path, lost=_ends((3, 9, 9, 5)))[-1] == (
        "source",
        [(5, 6), (9, 9)],
        GapReason.STORE_LOST,
        True,
    )


def test_the_time_at_which_a_replaced_store_was_seen_last_is_told(tmp_path: Path) -> None:
    _came(tmp_path, (1, 1, 0), (2, 3, 7))
    bronze = ensure_table(tmp_path, "bronze")
    held = BronzeContents(seen.load(tmp_path, bronze, stream_history.all_of(bronze)).numbers())
    told = _heard((9, 2, [LostStream("made", 2, 1, FIRST)]))

    found = stream_gaps.find_gaps(bronze, held, LedgerClaims({}, {}, {}, {SOURCE: {ORIGIN}}, told, []), {})
    assert [gap.detail.partition(";")[0] for gap in found] == [
        "the store that held them was seen last at 2025-11-13T02:13:20.123456789Z"
    ]


def test_an_end_that_is_older_than_the_lake_is_no_loss_of_its_own(tmp_path: Path) -> None:
    _came(tmp_path, (20, 23, 0))

    found = gaps(tmp_path, lost=_ends((3, 9, 20, 20)))
    assert ("source", [(4, 9)], GapReason.STORE_LOST, False) in found
    assert not any(lost for _, _, _, lost in found)
