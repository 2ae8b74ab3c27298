"""Completing what was known of the run before."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest
from msgspec import structs

from agent import contract
from agent.base.metrics import Metrics
from agent.config import StreamClass
from agent.contract import (
    H_COUNT,
    H_MESSAGE_ID,
    H_RESENT,
    LostStream,
    MessageId,
    Previous,
    Readings,
    StreamState,
    new_run,
)
from agent.jetstream import JetStream, StreamInfo
from agent.jetstream.readers import StoredHeaders
from agent.leaf.events import BatchStored
from agent.leaf.ledger import ClassLedger
from agent.leaf.ledger.evictions import IndexedMessage
from agent.leaf.ledger.evictions.service import EvictionMonitor
from agent.leaf.ledger.publisher import LedgerPublisher
from agent.leaf.state import VERSION, Acked, PullPosition, State
from agent.leaf.state_file import StateFile

BEFORE, NOW = new_run(now_ns=10**18), new_run()
CREATED, OTHER = "2026-11-21T06:00:00Z", "2026-11-21T07:00:00Z"
SESSIONS = ExitStack()
"""Connections that last as long as the tests."""
LETTERS = "tel.edge-1.normal._dead.file"
KNOWN = Acked(BEFORE, 10, 20, CREATED, Readings(accepted=120, stored=100, refused=20))


def stored(seq: int, ident: str, count: str = "5") -> StoredHeaders:
    """A batch that the stream holds."""
    return StoredHeaders(seq, 0.0, {H_MESSAGE_ID: ident, H_COUNT: count})


def no_discards(directory: Path) -> EvictionMonitor:
    """Of an agent none of whose streams discards."""
    return EvictionMonitor("edge-1", NOW, {}, directory, {}, {}, Metrics())


@pytest.fixture
def books(tmp_path: Path) -> LedgerPublisher:
    """The books of a run that follows on `BEFORE`."""
    state = State(VERSION, "machine", "edge-1", acked={"normal": KNOWN})
    return LedgerPublisher(
        "edge-1",
        NOW,
        {"normal": ClassLedger("edge-1", "normal", NOW)},
        StateFile(tmp_path / "s", state),
        no_discards(tmp_path),
    )


def previous(books: LedgerPublisher) -> tuple[int, Readings]:
    """What the first record of this run says of the run before."""
    found = books._ledgers["normal"].previous
    assert found is not None
    assert found.run == BEFORE
    return found.n, found.readings


@pytest.mark.parametrize(
    ("created", "since", "expected"),
    [
        pytest.param(CREATED, [], (10, KNOWN.readings), id="nothing since"),
        pytest.param(
            CREATED,
            [stored(21, f"{BEFORE}-normal-11"), stored(22, f"{BEFORE}-normal-12")],
            (12, Readings(accepted=120, stored=110, refused=20)),
            id="batches stored after the state was saved",
        ),
        pytest.param(
            CREATED,
            [StoredHeaders(21, 0.0, {**stored(21, f"{BEFORE}-normal-9").headers, H_RESENT: "9"})],
            (10, KNOWN.readings),
            id="a batch that was published again",
        ),
        pytest.param(
            CREATED,
            [stored(21, f"{BEFORE}-normal-11", "50")],
            (11, Readings(accepted=150, stored=150, refused=20)),
            id="no more is stored than was accepted",
        ),
        pytest.param(
            CREATED,
            [stored(21, f"{BEFORE}-normal-9")],
            (10, Readings(accepted=120, stored=105, refused=20)),
            id="a batch stored late under an earlier number",
        ),
        pytest.param(
            CREATED,
            [
                stored(21, f"{new_run(now_ns=0)}-normal-11"),
                stored(22, "nonsense"),
                stored(23, f"{BEFORE}-normal-11", "many"),
                StoredHeaders(24, 0.0, {}),
            ],
            (10, KNOWN.readings),
            id="what others stored",
        ),
        pytest.param(
            CREATED,
            [StoredHeaders(21, 0.0, stored(21, f"{BEFORE}-normal-11", "40").headers, LETTERS)],
            (11, Readings(accepted=140, stored=100, refused=20, dead=40)),
            id="dead letters",
        ),
        pytest.param(
            OTHER, [stored(21, f"{BEFORE}-normal-11")], (10, KNOWN.readings), id="of another stream"
        ),
    ],
)
async def test_what_was_stored_of_the_run_before_after_its_state_was_saved_is_counted_once(
    books: LedgerPublisher, created: str, since: list[StoredHeaders], expected: tuple[int, Readings]
) -> None:
    books.recall("normal", created, since)
    assert previous(books) == expected


async def test_a_later_run_of_which_only_the_stream_knows_is_the_one_before(books: LedgerPublisher) -> None:
    later = new_run()
    since = [
        stored(21, f"{BEFORE}-normal-11"),
        stored(22, f"{later}-normal-1"),
        stored(23, f"{later}-normal-2"),
    ]
    books.recall("normal", CREATED, since)
    found = books._ledgers["normal"].previous
    assert found == Previous(later, 2, Readings(accepted=10, stored=10), closed=False)


async def test_recalling_twice_counts_once(books: LedgerPublisher) -> None:
    for _ in range(2):
        books.recall("normal", CREATED, [stored(21, f"{BEFORE}-normal-11")])
    assert previous(books) == (11, Readings(accepted=120, stored=105, refused=20))


async def test_what_was_read_of_a_store_counts_though_that_is_lost_before_the_streams_are_ready(
    books: LedgerPublisher,
) -> None:
    last = StoredHeaders(22, 0.0, {H_MESSAGE_ID: f"{BEFORE}-normal-12", H_COUNT: "5"}, stored_ns=KNOWN.at + 7)
    books.recall("normal", CREATED, [stored(21, f"{BEFORE}-normal-11"), last])
    books.recall("normal", OTHER, [])
    assert previous(books) == (12, Readings(accepted=120, stored=110, refused=20))
    acked = books._state.current.acked["normal"]
    assert (acked.run, acked.n, acked.seq, acked.at) == (BEFORE, 12, 22, KNOWN.at + 7)


async def test_what_was_read_of_a_store_is_not_counted_over_that_of_an_older_copy(
    books: LedgerPublisher,
) -> None:
    restored = structs.replace(KNOWN, seq=25)
    books._state.current.acked["normal"] = restored
    books.recall("normal", CREATED, [stored(21, f"{BEFORE}-normal-11")])
    assert books._state.current.acked["normal"] == restored


async def test_a_first_run_has_no_previous_one(tmp_path: Path) -> None:
    ledger = ClassLedger("edge-1", "normal", NOW)
    state = StateFile(tmp_path / "s", State(VERSION, "m", "edge-1"))
    books = LedgerPublisher("edge-1", NOW, {"normal": ledger}, state, no_discards(tmp_path))
    books.recall("normal", CREATED, [])
    assert ledger.previous is None


def begin(books: LedgerPublisher, js: JetStream, streams: dict[str, StreamInfo]) -> None:
    """Begin a connection that lasts."""
    SESSIONS.enter_context(books.connected(js, streams))


def batch(n: int, seq: int, position: str | None = None) -> BatchStored:
    """A batch of this run, which the stream has acknowledged."""
    return BatchStored(MessageId(NOW, "normal", n), seq, 5, "file", position)


@pytest.mark.parametrize("created", [CREATED, OTHER])
async def test_the_last_sequence_of_a_stream_is_remembered_in_whatever_order_it_acknowledges(
    books: LedgerPublisher, created: str
) -> None:
    """That of another stream says nothing: the guard would take this one for an older store."""
    before = KNOWN.seq if created == CREATED else 0
    begin(
        books, cast(JetStream, None), {"normal": StreamInfo("TEL_edge-1_normal", created, 0, 0, 0, 0, {}, [])}
    )
    for n, seq in ((1, 8), (3, 25), (2, 24)):
        books._ledgers["normal"].store(n, 5)
        books.stored(batch(n, seq))
        now = books._state.current.acked["normal"]
        assert (now.run, now.created, now.seq) == (NOW, created, max(seq, before))
        before = now.seq


async def test_a_position_is_remembered_with_the_sequence_of_its_batch(books: LedgerPublisher) -> None:
    info = StreamInfo("TEL_edge-1_normal", CREATED, 0, 0, 0, 0, {}, [])
    begin(books, cast(JetStream, None), {"normal": info})
    books.stored(batch(1, 21, "line 9"))
    assert books._state.current.positions == {"normal": {"file": PullPosition("line 9", 21)}}


async def test_every_record_tells_of_the_streams_whose_store_was_lost(books: LedgerPublisher) -> None:
    books._state.current.lose("normal", KNOWN)
    info = StreamInfo("TEL_edge-1_normal", OTHER, 0, 0, 0, 0, {}, [])
    begin(books, cast(JetStream, None), {"normal": info})
    record = books._ledgers["normal"].record(contract.StreamState(OTHER, 0, 0))
    assert record.lost == (LostStream(CREATED, 20),)


async def test_a_stream_that_devices_fill_is_remembered_up_to_where_it_was_seen(
    books: LedgerPublisher,
) -> None:
    state = books._state.current
    state.acked["normal"] = KNOWN
    books.seen("normal", _info(CREATED, 30))
    assert state.acked["normal"] == KNOWN, "without a connection nobody knows whose stream that was"
    begin(books, cast(JetStream, object()), {"normal": _info(CREATED, 30)})
    books.seen("normal", _info(CREATED, 30))
    books.seen("normal", _info(CREATED, 29))
    books.seen("normal", _info(OTHER, 99))
    assert (state.acked["normal"].seq, state.acked["normal"].last) == (20, 30)
    books.stored(batch(1, 31))
    assert (state.acked["normal"].last, state.acked["normal"].top_time) == (31, "2026-11-21T06:00:30Z")
    state.lose("normal", state.acked["normal"], kept=25)
    assert state.lost["normal"] == [LostStream(CREATED, 31, 25, state.acked["normal"].at)]
    assert state.acked["normal"].at


def _info(created: str, last: int) -> StreamInfo:
    return StreamInfo("TEL_edge-1_normal", created, 1, last, last, 0, {}, [], f"2026-11-21T06:00:{last}Z")


async def test_what_is_discarded_while_a_record_of_its_run_is_stored_is_in_the_next_one(
    tmp_path: Path,
) -> None:
    bulk = {"bulk": StreamClass(name="bulk", discard="old")}
    ledgers = {"bulk": ClassLedger("edge-1", "bulk", NOW)}
    monitor = EvictionMonitor("edge-1", NOW, bulk, tmp_path, {}, ledgers, Metrics())
    claims = monitor._trackers["bulk"].claims
    claims.claim(IndexedMessage(4, BEFORE, 1, 3), "stream_full")
    record = monitor.record("bulk", BEFORE, StreamState(CREATED, 5, 9))
    claims.claim(IndexedMessage(5, BEFORE, 2, 3), "stream_full")
    monitor.recorded("bulk", record, 10)
    assert monitor.due("bulk") == [BEFORE]
    monitor.recorded("bulk", monitor.record("bulk", BEFORE, StreamState(CREATED, 6, 10)), 11)
    assert monitor.due("bulk") == []
