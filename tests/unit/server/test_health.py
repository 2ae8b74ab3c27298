"""What is made of the server's own words, and when it is started anew."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.files import Room
from agent.base.metrics import Metrics
from agent.base.nats_server import ServerError
from agent.server.health import ServerHealth, Trouble, TroubleKind, diagnose, unsynced
from agent.server.watch import CONFIRM_SECONDS, Doubts, Restarts

# As nats-server 2.15.1 says it.
FULL_STREAM = {
    "status": "error",
    "status_code": 503,
    "errors": [
        {
            "type": "STREAM",
            "account": "PETIOLE",
            "stream": "TEL_edge-1_normal",
            "error": "JetStream stream 'PETIOLE > TEL_edge-1_normal' write error: write"
            " /s/jetstream/PETIOLE/streams/TEL_edge-1_normal/msgs/4.blk: no space left on device",
        }
    ],
}
SHUT_DOWN = {
    "status": "error",
    "status_code": 503,
    "errors": [{"type": "JETSTREAM", "error": "JetStream not enabled (10076)"}],
}
FULL = Trouble(TroubleKind.WRITE, "no space left on device")
NO_ROOM, SOME_ROOM, ENOUGH = Room(0, 100), Room(150, 100), Room(200, 100)


def test_a_stream_that_is_not_written_any_more_is_named_with_the_reason() -> None:
    found = diagnose(FULL_STREAM)
    assert found == Trouble(TroubleKind.WRITE, "no space left on device", frozenset({"TEL_edge-1_normal"}))
    assert found.wants_room
    assert found.needs_start


def test_jetstream_that_shut_itself_down_is_told_from_a_server_that_is_well() -> None:
    found = diagnose(SHUT_DOWN)
    assert found is not None
    assert found.kind is TroubleKind.SHUT_DOWN
    assert diagnose({"status": "ok", "status_code": 200}) is None


def test_what_else_a_server_says_of_itself_is_told_and_starts_nothing_anew() -> None:
    found = diagnose({"status": "unavailable", "status_code": 503, "error": "no meta leader"})
    assert found is not None
    assert found.kind is TroubleKind.OTHER
    assert not found.needs_start


def test_only_the_streams_that_are_not_written_refuse() -> None:
    health = ServerHealth(Metrics())
    assert health.refusal("TEL_edge-1_normal") is None
    health.found(diagnose(FULL_STREAM), "free some room")
    assert "no space left on device; free some room" in (health.refusal("TEL_edge-1_normal") or "")
    assert health.refusal("TEL_edge-1_alarms") is None
    health.found(diagnose(SHUT_DOWN), "restart it")
    assert "shut itself down" in (health.refusal("TEL_edge-1_alarms") or "")
    health.found(None)
    assert health.sentence is None
    assert health.refusal("TEL_edge-1_normal") is None


def test_whether_the_server_stores_is_known_by_what_refuses() -> None:
    health = ServerHealth(Metrics())
    stores = [health.status()["stores"]]
    for trouble in (diagnose(SHUT_DOWN), Trouble(TroubleKind.OTHER, "it is slow"), None):
        health.found(trouble, "see its log")
        stores.append(health.status()["stores"])
    health.started("the port is taken")
    stores.append(health.status()["stores"])
    assert stores == [True, False, True, True, False]


def test_a_server_that_is_too_old_is_refused_until_another_one_is_there() -> None:
    health = ServerHealth(Metrics())
    with pytest.raises(ServerError, match=r"2\.15\.0.*take 2\.15\.1"):
        health.admit("2.15.0")
    assert "2.15.0" in (health.sentence or "")
    health.admit("2.15.1")
    assert health.sentence is None


def test_a_server_that_does_not_sync_before_it_acknowledges_is_named_with_its_interval() -> None:
    assert unsynced({"jetstream": {"config": {"sync_always": True, "sync_interval": 120 * 10**9}}}) is None
    assert "each 120 s" in (unsynced({"jetstream": {"config": {"sync_interval": 120 * 10**9}}}) or "")


def test_whether_acknowledged_means_synced_is_not_known_until_the_server_was_asked() -> None:
    metrics = Metrics()
    health = ServerHealth(metrics)
    assert health.status()["synced"] is None
    assert math.isnan(metrics.registry.get_sample_value("petiole_server_synced") or 0)
    health.synced("not synced")
    assert health.status()["synced"] is False
    health.synced(None)
    assert health.status()["synced"] is True
    assert health.warning is None


def test_a_server_on_a_full_disk_is_started_anew_once_there_is_room_and_not_before() -> None:
    restarts = Restarts()
    assert not restarts.due(FULL, NO_ROOM, 0.0)
    assert not restarts.due(FULL, SOME_ROOM, 1000.0)
    assert restarts.due(FULL, ENOUGH, 1000.0)


def test_what_is_not_for_want_of_room_waits_only_for_a_disk_that_is_not_full() -> None:
    broken = Trouble(TroubleKind.WRITE, "input/output error")
    assert not Restarts().due(broken, NO_ROOM, 0.0)
    assert Restarts().due(broken, SOME_ROOM, 0.0)


UNREADY = Trouble(TroubleKind.OTHER, "failed to be ready for connections after 1ms")


def test_general_words_are_believed_once_they_have_lasted_and_a_good_answer_ends_them() -> None:
    doubts = Doubts()
    assert doubts.confirmed(UNREADY, 0.0) is None
    assert doubts.confirmed(UNREADY, CONFIRM_SECONDS - 0.1) is None
    assert doubts.confirmed(UNREADY, CONFIRM_SECONDS) == UNREADY
    assert doubts.confirmed(UNREADY, 100.0) == UNREADY
    assert doubts.confirmed(None, 101.0) is None
    assert doubts.confirmed(UNREADY, 102.0) is None, "it begins anew"


def test_what_is_not_written_is_believed_at_once() -> None:
    doubts = Doubts()
    assert doubts.confirmed(UNREADY, 0.0) is None
    assert doubts.confirmed(FULL, 0.1) == FULL
    assert doubts.confirmed(UNREADY, CONFIRM_SECONDS) is None


@given(st.lists(st.floats(0.0, 100.0), min_size=200, max_size=200))
def test_a_server_that_does_not_mend_is_started_anew_ever_less_often(pauses: list[float]) -> None:
    restarts, now, starts = Restarts(), 0.0, []
    for pause in pauses:
        now += pause
        if restarts.due(FULL, ENOUGH, now):
            starts.append(now)
    gaps = [later - before for before, later in itertools.pairwise(starts)]
    assert all(gap >= min(600.0, 2.0**number) for number, gap in enumerate(gaps))


def test_after_a_long_time_without_a_fault_the_delays_begin_anew() -> None:
    restarts = Restarts()
    for now in (0.0, 10.0, 20.0):
        assert restarts.due(FULL, ENOUGH, now)
    assert not restarts.due(FULL, ENOUGH, 21.0)
    restarts.well(1000.0)
    assert restarts.due(FULL, ENOUGH, 1001.0)
    assert restarts.due(FULL, ENOUGH, 1002.5)
