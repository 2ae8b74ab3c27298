"""Each fence around what only the leading agent of a hub may write, on its own."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from agent.contract import inbox_prefix
from agent.demo.loopback import LoopbackProxy
from agent.hub import leadership, lease
from agent.hub.leadership import NotLeadingError, while_leading
from agent.hub.registrar import aggregate
from agent.hub.registrar.aggregate import AggregateSettings, aggregate_config, fleet_config
from agent.jetstream import ApiError, JetStream
from agent.jetstream.connection import CancellableClient
from agent.process.hub import ForgetfulClient
from tests.harness.candidates import Candidate, candidate
from tests.harness.cluster import open_cluster
from tests.harness.servers import ServerPair
from tests.harness.streams import AGGREGATE
from tests.harness.wait import until

RECORD = "$KV.petiole_fleet.edge-1"


@pytest.fixture(autouse=True)
def renewed_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that is renewed ten times a second."""
    monkeypatch.setattr(leadership, "RENEW_EVERY", 0.1)


async def test_a_holder_that_does_not_know_better_is_refused_by_the_server(
    servers: ServerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(candidate(servers, "a"))
        await first.leads()
        second = await stack.enter_async_context(candidate(servers, "b"))
        assert await first.js.publish(RECORD, b"{}") > 0
        await first.stop()
        await second.leads()
        monkeypatch.setattr(first.lead, "holds", lambda: True)
        with pytest.raises(ApiError, match="wrong last sequence"):
            await first.js.publish(RECORD, b"stale")
        message = await second.js.get_message("KV_petiole_fleet", last_by_subject=RECORD)
        assert message is not None
        assert message.data == b"{}"


async def test_changes_without_a_condition_end_with_the_lease_by_the_clock_alone(
    servers: ServerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = []

    async def answer(msg: Msg) -> None:
        heard.append(msg.data)

    async with candidate(servers, "a") as first:
        await first.leads()
        config = aggregate_config(AGGREGATE, AggregateSettings(2**20), [])
        await first.js.ensure_stream(config)
        take = while_leading(first.lead, answer)
        await take(Msg(first.lead._nc, data=b"in time"))
        await first.stop()
        now = leadership._now()
        monkeypatch.setattr(leadership, "_now", lambda: now + lease.SECONDS)
        for change in (
            first.js.update_stream(config),
            first.js.purge(AGGREGATE, 1),
            first.js.create_consumer(AGGREGATE, {"name": "x"}),
            first.js.delete_consumer(AGGREGATE, "x"),
            first.js.publish(RECORD, b"{}"),
        ):
            with pytest.raises(NotLeadingError):
                await change
        await take(Msg(first.lead._nc, data=b"late"))
        assert heard == [b"in time"]
        assert (await first.js.stream_info(AGGREGATE)).messages == 0, "it may still look"


async def test_a_new_holder_has_the_connections_of_the_last_one_cut(
    servers: ServerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(candidate(servers, "a"))
        await first.leads()
        second = await stack.enter_async_context(candidate(servers, "b"))
        await first.stop()
        monkeypatch.setattr(first.lead._election, "leads", lambda now: True)
        assert first.lead.holds(), "a clock that stands still"
        await second.leads()
        await until(lambda: not first.lead.holds(), "its connections are cut")
        await until(lambda: first.lead._nc.stats["reconnects"] == 1, "the client of the first is back")
        assert not first.lead.holds(), "the lease does not name the connection that it has now"


async def test_one_that_lets_go_is_followed_at_once(servers: ServerPair) -> None:
    async with candidate(servers, "a") as first:
        await first.leads()
        async with candidate(servers, "b") as second:
            await until(lambda: second.lead.holder != "", "the second sees who leads")
            await first.stop()
            await first.lead.release()
            await second.leads()
            assert not first.lead.holds()


async def test_a_standby_waits_for_the_holder_of_a_lease_that_somebody_purged(servers: ServerPair) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(candidate(servers, "a"))
        await first.leads()
        second = await stack.enter_async_context(candidate(servers, "b"))
        await until(lambda: second.lead.holder != "", "the second sees who leads")
        await first.stop()
        await JetStream(first.lead._nc).api("STREAM.PURGE.KV_petiole_fleet")
        assert first.lead.holds(), "it has not looked since"
        cut = first.lead._nc.stats["reconnects"]
        await second.leads()
        assert not first.lead.holds()
        await until(lambda: first.lead._nc.stats["reconnects"] > cut, "its connections are cut")


async def test_one_that_starts_after_the_lease_was_purged_waits_for_its_holder(servers: ServerPair) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(candidate(servers, "a"))
        await first.leads()
        await first.stop()
        await JetStream(first.lead._nc).api("STREAM.PURGE.KV_petiole_fleet")
        second = await stack.enter_async_context(candidate(servers, "b"))
        await second.leads()
        assert not first.lead.holds(), "two lead"


async def fill(one: Candidate, size: int) -> None:
    """Store records of this size until one is refused."""
    for number in range(128):
        await one.js.publish(f"{RECORD}-{size}-{number}", os.urandom(size))


async def test_the_lead_stays_where_it_is_when_the_bucket_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers of a cluster refuse each record then, also one that replaces another."""
    monkeypatch.setattr(aggregate, "_FLEET_BYTES", 4 * 2**20)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(open_cluster(tmp_path, monkeypatch, LoopbackProxy(0)))
        first = await stack.enter_async_context(candidate(cluster.servers, "a", replicas=3))
        await first.leads()
        for size in (2**18, 2**14, 2**10, 2**6, 1):
            with pytest.raises(ApiError, match="maximum bytes exceeded"):
                await fill(first, size)
        election = first.lead._election
        revision = election.revision
        await until(lambda: election.revision > revision + 3, "the lease is renewed")
        assert first.lead.holds()
        await JetStream(first.lead._nc).api(
            "STREAM.PURGE.KV_petiole_fleet", {"filter": f"{RECORD}-{2**18}-7"}
        )
        assert await first.js.publish(RECORD, b"{}") > 0, "there is room again"


async def test_machines_of_one_image_do_not_take_each_other_for_themselves(servers: ServerPair) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(candidate(servers, "a", "hub-a"))
        await first.leads()
        second = await stack.enter_async_context(candidate(servers, "a", "hub-b"))
        await until(lambda: second.lead.holder == "hub-a", "the second sees who leads")
        election = first.lead._election
        revision = election.revision
        await until(lambda: election.revision > revision + 3, "the first has renewed its lease")
        assert first.lead.holds()
        assert not second.lead.taken.is_set()
        assert election.lease is not None
        assert election.lease.term == 1


@pytest.mark.parametrize("kind", [ForgetfulClient, CancellableClient])
async def test_nothing_that_was_buffered_for_one_connection_goes_over_the_next(
    servers: ServerPair, kind: type[CancellableClient]
) -> None:
    """The library's own client would send it, which shows that the test can fail."""
    proxy, js = LoopbackProxy(servers.hub.port), JetStream(await servers.hub.connect("registrar"))
    await js.ensure_stream(fleet_config())

    async def stored(name: str) -> bool:
        return (
            await js.get_message("KV_petiole_fleet", last_by_subject=f"$KV.petiole_fleet.{name}") is not None
        )

    async def note(_error: Exception) -> None:
        """The connection is cut."""

    await proxy.start()
    client = kind()
    await client.connect(
        f"nats://{proxy.host}:{proxy.port}",
        nkeys_seed=str(servers.hub.keys["registrar"]),
        inbox_prefix=inbox_prefix("registrar").encode(),
        reconnect_time_wait=0.05,
        max_reconnect_attempts=-1,
        error_cb=note,
    )
    proxy.cut()
    await until(lambda: not client.is_connected, "the connection is cut")
    await client.publish("$KV.petiole_fleet.late", b"{}")
    proxy.restore()
    await until(lambda: client.is_connected, "it is made again")
    await client.publish("$KV.petiole_fleet.new", b"{}")
    await until(lambda: stored("new"), "what is published now arrives")
    assert await stored("late") is (kind is CancellableClient)
    await client.close()
    await proxy.stop()
