"""A stream on three servers, of which one has lost a part of its copy, or is down."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta

import pytest

from hub_jobs.source import copies, range_reader
from hub_jobs.source.copies import first_held
from hub_jobs.source.protocol import Unreachable
from hub_jobs.source.range_reader import RangeReader
from tests.harness.wait import wait_for
from tests.unit.hub_jobs.source.plain_cluster import PlainCluster, cluster

__all__ = ["cluster"]

SMALL = 64
"""Bytes for which each message is too large, so that each pull is refused until one asks for it alone."""


@pytest.mark.parametrize("number", [0, 1])
def test_what_another_copy_has_is_not_lost_though_more_is_deleted(cluster: PlainCluster, number: int) -> None:
    wait_for(lambda: not cluster.refusal(), "all is read")
    damaged = cluster.damage_leader(number)
    for options in ({}, {"max_bytes": SMALL}):

        def is_refused(options: dict[str, int] = options) -> bool:
            return f"{damaged} lacks records in" in cluster.refusal(**options)

        wait_for(is_refused, f"a read of the damaged copy fails with {options}")


class _HeldReader(RangeReader):
    """Its server delivers nothing to its consumer, which is paused."""

    def open(self, created: str | None) -> None:
        super().open(created)
        name = f"{self._stream}.{self._consumer}"
        until = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
        self._conn.api(f"CONSUMER.PAUSE.{name}", {"pause_until": until})
        # the answer says that the pause is proposed to the cluster
        wait_for(lambda: self._conn.api(f"CONSUMER.INFO.{name}").get("paused", False), f"{name} is paused")


def test_a_copy_that_delivers_nothing_is_not_taken_to_have_nothing(
    cluster: PlainCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "RangeReader", _HeldReader)
    monkeypatch.setattr(range_reader, "_STALL_S", 1)
    assert "S: nothing after 194 came in 1 s" in cluster.refusal()


def test_what_a_server_that_is_down_may_have_is_not_lost(cluster: PlainCluster) -> None:
    name = next(iter(cluster.replicas("current")))
    cluster.servers[name].signal(signal.SIGTERM)
    wait_for(lambda: cluster.replicas("offline").get(name, False), f"{name} is offline")
    said: list[str] = []

    def is_said() -> bool:
        said.append(cluster.refusal())
        return f"{name}, which may have them, is offline: start it" in said[-1]

    wait_for(is_said, f"a read fails since {name} is offline")
    assert all(said)
    cluster.servers[name].stop()
    cluster.servers[name].start()
    wait_for(lambda: not cluster.refusal(), "all is read once the server has consumers placed on it again")


def test_a_stream_begins_where_no_server_is_offline_that_may_have_more(cluster: PlainCluster) -> None:
    name = next(iter(cluster.replicas("current")))
    cluster.servers[name].signal(signal.SIGTERM)
    wait_for(lambda: cluster.replicas("offline").get(name, False), f"{name} is offline")
    with cluster.connect() as conn:
        assert first_held(conn, "S") == 1, "nothing is missing"
        conn.api("STREAM.PURGE.S", {"seq": 10})
        with pytest.raises(Unreachable, match=f"lacks records in 1 to 9; {name}, .* is offline: start it"):
            first_held(conn, "S")
    cluster.servers[name].stop()
    cluster.servers[name].start()
    wait_for(cluster.whole, "three servers are current")

    def begins_at_ten() -> bool:
        with cluster.connect() as conn:
            return first_held(conn, "S") == 10

    wait_for(begins_at_ten, "each copy is purged")
