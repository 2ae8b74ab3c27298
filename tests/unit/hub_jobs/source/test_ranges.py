from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hub_jobs.source import range_reader
from hub_jobs.source.connection import Connection
from hub_jobs.source.protocol import RangeLost, Unreachable
from hub_jobs.source.range_reader import RangeReader
from hub_jobs.source.server import Server
from hub_jobs.source.streams import stream_info
from tests.harness.stream_records import StreamRecord, read_range
from tests.unit.hub_jobs.source.plain import PlainServer, fill, make_stream


@pytest.fixture
def small_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pulls of 50 records, so that a few hundred take many rounds."""
    monkeypatch.setattr(range_reader, "PULL_ROWS", 50)


def rows(found: Iterator[list[StreamRecord]]) -> list[StreamRecord]:
    return [record for some in found for record in some]


def payloads(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(1, count + 1)]


def consumers(conn: Connection, stream: str) -> int:
    state = conn.api(f"STREAM.INFO.{stream}")["state"]
    return int(state["consumer_count"])


def test_a_range_is_read_whole_and_twice_the_same(
    server: PlainServer, conn: Connection, small_pulls: None
) -> None:
    make_stream(conn, "S")
    fill(server, "S.a", payloads(400), {"Nats-Msg-Id": ""})
    fill(server, "S.b", payloads(40))
    found = rows(read_range(conn, "S", 11, 433))
    assert [record.seq for record in found] == list(range(11, 434))
    assert [record.payload for record in found[:390]] == payloads(400)[10:]
    assert found[0].subject == b"S.a"
    assert found[0].headers.startswith(b"NATS/1.0\r\nNats-Msg-Id:")
    assert found[-1][:3] == (b"S.b", b"", b"33")
    stamps = [record.timestamp_ns for record in found]
    assert stamps == sorted(stamps)
    assert rows(read_range(conn, "S", 11, 433)) == found
    assert rows(read_range(conn, "S", 440, 440))[0].payload == b"40"
    assert rows(read_range(conn, "S", 5, 4)) == []
    assert consumers(conn, "S") == 0


def test_small_records_that_come_together_are_read_whole(server: PlainServer, conn: Connection) -> None:
    make_stream(conn, "S")
    fill(server, "S.a", payloads(3000), {"Nats-Msg-Id": "", "Other": "x" * 50})
    conn.api("STREAM.MSG.DELETE.S", {"seq": 1200})
    found = rows(read_range(conn, "S", 1, 2900))
    assert [record.seq for record in found] == [seq for seq in range(1, 2901) if seq != 1200]
    assert [record.payload for record in found] == [b"%d" % record.seq for record in found]
    assert {record.subject for record in found} == {b"S.a"}
    assert all(record.headers.endswith(b"x\r\n\r\n") for record in found)


def test_the_longer_delivery_subjects_are_read_too(tmp_path: Path) -> None:
    server = PlainServer(tmp_path / "server", "feature_flags { js_ack_fc_v2: true }")
    try:
        server.start()
        with Connection(Server(server.url)) as conn:
            make_stream(conn, "S")
            fill(server, "S.a", payloads(20))
            assert [record.seq for record in rows(read_range(conn, "S", 3, 18))] == list(range(3, 19))
    finally:
        server.stop()


def test_deleted_messages_are_passed_over(server: PlainServer, conn: Connection, small_pulls: None) -> None:
    make_stream(conn, "S")
    fill(server, "S.a", payloads(300))
    deleted = {2, 3, 50, 51, 120, 299, 300}
    for seq in deleted:
        conn.api("STREAM.MSG.DELETE.S", {"seq": seq})
    found = [record.seq for record in rows(read_range(conn, "S", 1, 300))]
    assert found == [seq for seq in range(1, 301) if seq not in deleted]
    assert [record.seq for record in rows(read_range(conn, "S", 299, 300))] == []


def test_an_old_message_that_stays_hides_that_newer_ones_are_gone(
    server: PlainServer, conn: Connection
) -> None:
    """Documented: the server tells the sequences that are gone and not why, and a loss is what is below the
    first one."""
    make_stream(conn, "S", max_msgs_per_subject=2)
    fill(server, "S.seldom", payloads(1))
    fill(server, "S.often", payloads(9))
    for filters in ([], ["S.often"]):
        found = rows(read_range(conn, "S", 2, 10, filter_subjects=filters))
        assert [record.seq for record in found] == [9, 10]
    conn.api("STREAM.MSG.DELETE.S", {"seq": 1})
    with pytest.raises(RangeLost, match="it begins at 9 now, and 2 was to be read"):
        rows(read_range(conn, "S", 2, 10))


def test_only_the_subjects_that_are_asked_for_come(
    server: PlainServer, conn: Connection, small_pulls: None
) -> None:
    make_stream(conn, "S")
    for _ in range(3):
        fill(server, "S.a", payloads(60))
        fill(server, "S.b.c", payloads(1))
    last = stream_info(conn, "S").last_seq
    assert [record.seq for record in rows(read_range(conn, "S", 1, last, filter_subjects=["S.b.*"]))] == [
        61,
        122,
        183,
    ]
    assert [
        record.seq for record in rows(read_range(conn, "S", 1, 130, filter_subjects=["S.b.*", "S.c"]))
    ] == [61, 122]
    assert rows(read_range(conn, "S", 1, last, filter_subjects=["S.none"])) == []
    assert rows(read_range(conn, "S", 123, 180, filter_subjects=["S.b.*"])) == []
    assert len(rows(read_range(conn, "S", 1, last, filter_subjects=["S.a"]))) == 180


def test_a_message_larger_than_the_limit_is_read_nevertheless(server: PlainServer, conn: Connection) -> None:
    make_stream(conn, "S")
    large = b"x" * 900_000
    fill(server, "S.a", [b"1", large, b"3", large, large, b"6"])
    sizes = [len(record.payload) for record in rows(read_range(conn, "S", 1, 6, max_bytes=4096))]
    assert sizes == [1, 900_000, 1, 900_000, 900_000, 1]


def test_no_more_than_the_limit_comes_at_once(server: PlainServer, conn: Connection) -> None:
    make_stream(conn, "S")
    fill(server, "S.a", [b"x" * 1000] * 200)
    lists = list(read_range(conn, "S", 1, 200, max_bytes=20_000))
    assert max(sum(len(record.payload) for record in some) for some in lists) <= 20_000
    assert sum(map(len, lists)) == 200


def test_a_range_whose_start_was_purged_is_lost_unless_that_is_allowed(
    server: PlainServer, conn: Connection
) -> None:
    make_stream(conn, "S")
    fill(server, "S.a", payloads(100))
    conn.api("STREAM.PURGE.S", {"seq": 41})
    for filters in ([], ["S.*"]):
        with pytest.raises(RangeLost, match="begins at 41 now, and 1 was to be read"):
            rows(read_range(conn, "S", 1, 100, filter_subjects=filters))
        left = rows(read_range(conn, "S", 1, 100, filter_subjects=filters, allow_lost=True))
        assert [record.seq for record in left] == list(range(41, 101))
    conn.api("STREAM.PURGE.S")
    for filters in ([], ["S.*"]):
        with pytest.raises(RangeLost, match="begins at 101 now"):
            rows(read_range(conn, "S", 41, 100, filter_subjects=filters))
        assert rows(read_range(conn, "S", 41, 100, filter_subjects=filters, allow_lost=True)) == []
    assert consumers(conn, "S") == 0


def test_a_purge_under_the_reader_is_noticed(
    server: PlainServer, conn: Connection, small_pulls: None
) -> None:
    make_stream(conn, "S")
    fill(server, "S.a", payloads(1000))
    for filters in ([], ["S.a"]):
        found = read_range(conn, "S", stream_info(conn, "S").first_seq, 1000, filter_subjects=filters)
        next(found)
        with Connection(conn.server) as other:
            other.api("STREAM.PURGE.S", {"seq": stream_info(other, "S").first_seq + 300})
        with pytest.raises(RangeLost, match="begins at"):
            rows(found)


def test_a_stream_that_was_made_anew_or_put_back_is_another(server: PlainServer, conn: Connection) -> None:
    make_stream(conn, "S")
    fill(server, "S.a", payloads(10))
    created = stream_info(conn, "S").created
    assert len(rows(read_range(conn, "S", 1, 10, created=created))) == 10
    with pytest.raises(RangeLost, match="it ends at 10"):
        rows(read_range(conn, "S", 1, 11))
    conn.api("STREAM.DELETE.S")
    make_stream(conn, "S")
    fill(server, "S.a", payloads(20))
    with pytest.raises(RangeLost, match="recreated"):
        rows(read_range(conn, "S", 1, 10, created=created))


def test_a_stream_that_is_deleted_under_the_reader_is_no_short_read(
    server: PlainServer, conn: Connection, small_pulls: None
) -> None:
    make_stream(conn, "S")
    fill(server, "S.a", payloads(1000))
    found = read_range(conn, "S", 1, 1000)
    next(found)
    with Connection(conn.server) as other:
        other.api("STREAM.DELETE.S")
    with pytest.raises(Unreachable, match="the server ended the read at 100"):
        rows(found)


def test_a_new_consumer_of_which_the_server_has_not_heard_yet_is_asked_again(
    server: PlainServer, conn: Connection, small_pulls: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_stream(conn, "S")
    fill(server, "S.a", payloads(120))
    reader = RangeReader(conn, "S", 1, 120, [], 1 << 20, False)
    reader.open(None)
    name = conn.api("CONSUMER.NAMES.S")["consumers"][0]
    config = conn.api(f"CONSUMER.INFO.S.{name}")["config"]
    conn.api(f"CONSUMER.DELETE.S.{name}")
    pauses: list[float] = []

    def comes_at_the_third_pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            with Connection(conn.server) as other:
                other.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": config})

    monkeypatch.setattr(time, "sleep", comes_at_the_third_pause)
    found = [seq for columns in reader.read() for seq in columns.seqs.tolist()]
    assert found == list(range(1, 121))
    assert len(pauses) == 3

    monkeypatch.setattr(range_reader, "_UNHEARD_S", 0.0)
    gone = RangeReader(conn, "S", 1, 120, [], 1 << 20, False)
    gone.open(None)
    for name in conn.api("CONSUMER.NAMES.S")["consumers"]:
        conn.api(f"CONSUMER.DELETE.S.{name}")
    with pytest.raises(Unreachable, match="the server ended the read at 0: 503"):
        next(gone.read())


def test_a_server_that_is_killed_or_restarted_under_the_reader_is_no_short_read(
    server: PlainServer, small_pulls: None
) -> None:
    with Connection(Server(server.url)) as conn:
        make_stream(conn, "S")
        fill(server, "S.a", payloads(1000))
    for restart in (False, True):
        with Connection(Server(server.url)) as conn:
            found = read_range(conn, "S", 1, 1000)
            assert len(next(found)) == 100
            server.signal(signal.SIGKILL)
            if restart:
                server.start()
            with pytest.raises(Unreachable, match="connection"):
                rows(found)
        if not restart:
            server.start()
    with Connection(Server(server.url)) as conn:
        assert len(rows(read_range(conn, "S", 1, 1000))) == 1000


def test_a_server_that_falls_silent_is_unreachable(server: PlainServer, small_pulls: None) -> None:
    with Connection(Server(server.url)) as conn:
        make_stream(conn, "S")
        fill(server, "S.a", payloads(1000))
        found = read_range(conn, "S", 1, 1000)
        next(found)
        conn.timeout = 1.0
        server.signal(signal.SIGSTOP)
        try:
            with pytest.raises(Unreachable, match="silent for 1 s"):
                rows(found)
        finally:
            server.signal(signal.SIGCONT)


def test_a_reader_that_is_left_early_leaves_no_consumer(
    server: PlainServer, conn: Connection, small_pulls: None
) -> None:
    make_stream(conn, "S")
    fill(server, "S.a", payloads(1000))
    found = read_range(conn, "S", 1, 1000)
    next(found)
    assert consumers(conn, "S") == 1
    found.close()  # type: ignore[attr-defined]
    assert consumers(conn, "S") == 0
    assert len(rows(read_range(conn, "S", 1, 1000))) == 1000
    with suppress(StopIteration):
        next(found)
