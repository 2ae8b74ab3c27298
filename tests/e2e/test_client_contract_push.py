"""The client document, in both domains and from either side: push consumers and ordered ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from nats.aio.msg import Msg
from nats.js import api
from nats.js.errors import Error

from tests.harness.places import Place, new_name
from tests.harness.wait import WAIT_SECONDS, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECOND = 10**9


async def test_a_push_consumer_delivers_to_its_subject_and_is_acknowledged(at: Place) -> None:
    stream, name = await at.stream(3), new_name()
    config = api.ConsumerConfig(deliver_subject=f"deliver.{name}", ack_policy=api.AckPolicy.EXPLICIT)
    pushed = await at.js.subscribe(f"{stream}.>", durable=name, stream=stream, config=config, manual_ack=True)
    for number in range(1, 4):
        found = await pushed.next_msg(timeout=30)
        assert (found.data, found.metadata.sequence.stream) == (b"%d" % number, number)
        await found.ack_sync()
    info = await at.raw.consumer_info(stream, name)
    assert (info.ack_floor, info.push_bound) == (3, True)
    await pushed.unsubscribe()


async def test_a_durable_push_consumer_goes_on_where_it_was(at: Place) -> None:
    stream, name = await at.stream(1), new_name()
    first = await at.js.subscribe(f"{stream}.>", durable=name, stream=stream, manual_ack=True)
    await (await first.next_msg(timeout=30)).ack_sync()
    with pytest.raises(Error, match="already bound"):
        await at.js.subscribe(f"{stream}.>", durable=name, stream=stream)
    await first.unsubscribe()

    async def unbound() -> bool:
        return not (await at.raw.consumer_info(stream, name)).push_bound

    await until(unbound, "nobody listens to the consumer")
    await at.raw.publish(f"{stream}.x", b"later")
    again = await at.js.subscribe(f"{stream}.>", durable=name, stream=stream)
    assert (await again.next_msg(timeout=30)).data == b"later"
    await again.unsubscribe()


async def test_a_deliver_group_shares_the_messages_of_a_consumer(at: Place) -> None:
    stream = await at.stream()
    taken: list[tuple[int, int]] = []

    def member(number: int) -> Any:
        async def take(message: Msg) -> None:
            taken.append((message.metadata.sequence.stream, number))

        return take

    group = [await at.js.subscribe(f"{stream}.>", queue="workers", cb=member(one)) for one in range(2)]
    for number in range(40):
        await at.raw.publish(f"{stream}.x", b"%d" % number)
    await until(lambda: len(taken) == 40, "all messages are taken")
    assert sorted(seq for seq, _ in taken) == list(range(1, 41))
    assert {number for _, number in taken} == {0, 1}
    for one in group:
        await one.unsubscribe()


async def test_every_setting_of_a_push_consumer_is_kept_as_it_was_given(at: Place) -> None:
    stream, name = await at.stream(), new_name()
    asked: dict[str, Any] = {
        "durable_name": name,
        "deliver_subject": f"deliver.{name}",
        "deliver_group": "workers",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": 3,
        "filter_subject": f"{stream}.a",
        "rate_limit_bps": 1_000_000,
        "flow_control": True,
        "idle_heartbeat": SECOND,
    }
    await at.js.add_consumer(stream, api.ConsumerConfig.from_response(dict(asked)))
    kept = (await at.raw.consumer_info(stream, name)).config
    assert {key: kept.get(key) for key in asked} == asked


async def test_a_push_consumer_that_has_nothing_to_say_is_heard_all_the_same(at: Place) -> None:
    stream, name = await at.stream(), new_name()
    inbox = await at.nc.subscribe(f"deliver.{name}")
    await at.nc.flush()
    config = {"name": name, "deliver_subject": f"deliver.{name}", "idle_heartbeat": SECOND // 10}
    await at.raw.create_consumer(stream, config)
    beat = await inbox.next_msg(timeout=30)
    assert (beat.headers or {})["Status"] == "100"
    await inbox.unsubscribe()


async def test_an_ordered_consumer_reads_a_stream_in_order_and_starts_again_when_it_is_lost(
    at: Place,
) -> None:
    stream = await at.stream(20)
    ordered = await at.js.subscribe(f"{stream}.>", ordered_consumer=True, idle_heartbeat=0.3)
    seen = [(await ordered.next_msg(timeout=30)).metadata.sequence.stream for _ in range(20)]
    first = (await ordered.consumer_info()).name
    config = (await at.raw.consumer_info(stream, first)).config
    assert (config["ack_policy"], config["flow_control"], config["mem_storage"]) == ("none", True, True)
    await at.raw.delete_consumer(stream, first)

    async def another() -> bool:
        return first not in (names := await at.raw.consumer_names(stream)) and bool(names)

    await until(another, "another consumer has taken its place")
    for number in range(20):
        await at.raw.publish(f"{stream}.late", b"%d" % number)
    seen += [(await ordered.next_msg(timeout=30)).metadata.sequence.stream for _ in range(20)]
    assert seen == list(range(1, 41))
    await ordered.unsubscribe()


async def test_flow_control_lets_a_slow_reader_have_all_of_it(at: Place) -> None:
    stream = await at.stream()
    acks = [await at.js.publish_async(f"{stream}.x", b"x" * 20_000) for _ in range(200)]
    await asyncio.wait_for(asyncio.gather(*acks), WAIT_SECONDS)
    pushed = await at.js.subscribe(
        f"{stream}.>", flow_control=True, idle_heartbeat=0.5, ordered_consumer=True
    )
    seen = [(await pushed.next_msg(timeout=30)).metadata.sequence.stream for _ in range(200)]
    assert seen == list(range(1, 201))
    await pushed.unsubscribe()
