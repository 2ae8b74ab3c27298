"""The client document, in both domains and from either side: pull consumers and acknowledgements."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import nats.errors
import pytest
from nats.aio.msg import Msg
from nats.js import api

from agent.jetstream import UnavailableError, programs
from agent.jetstream.programs import Consumer, ConsumerGoneError, fetch, messages, term
from tests.harness.places import Place, new_name
from tests.harness.wait import WAIT_SECONDS, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECOND = 10**9
SHORT = 0.2


def sequences(found: list[Msg]) -> list[int]:
    """Where these messages are in their stream."""
    return [one.metadata.sequence.stream for one in found]


async def pulling(at: Place, count: int, **config: Any) -> tuple[str, Consumer]:
    """A stream of so many messages and a pull consumer of it."""
    stream = await at.stream(count)
    return stream, await at.consumer(stream, **config)


async def state(at: Place, consumer: Consumer) -> tuple[int, int, int]:
    """Ack floor, unacknowledged and pending messages of a consumer."""
    info = await at.raw.consumer_info(consumer.stream, consumer.name)
    return info.ack_floor, info.ack_pending, info.pending


async def reaches(at: Place, consumer: Consumer, *wanted: int) -> None:
    """Return when a consumer's ack floor, unacknowledged and pending messages are these."""

    async def reached() -> bool:
        return await state(at, consumer) == wanted

    await until(reached, f"the consumer reaches {wanted}")


async def test_a_message_knows_where_it_came_from(at: Place) -> None:
    stream, consumer = await pulling(at, 3)
    (found,) = await fetch(at.nc, consumer, 1)
    about = found.metadata
    assert (found.subject, found.data) == (f"{stream}.1", b"1")
    assert (about.stream, about.consumer) == (stream, consumer.name)
    assert (about.sequence.stream, about.sequence.consumer) == (1, 1)
    assert (about.num_delivered, about.num_pending) == (1, 2)
    assert abs(about.timestamp - datetime.now(UTC)) < timedelta(minutes=1)


async def test_a_fetch_gives_what_is_there_and_a_batch_waits_for_more(at: Place) -> None:
    stream, consumer = await pulling(at, 5)
    assert sequences(await fetch(at.nc, consumer, 3)) == [1, 2, 3]
    assert sequences(await fetch(at.nc, consumer, 10)) == [4, 5]
    assert await fetch(at.nc, consumer, 10) == []
    waiting = asyncio.create_task(fetch(at.nc, consumer, 2, wait=WAIT_SECONDS))
    for _ in range(2):
        await at.raw.publish(f"{stream}.late", b"")
    assert sequences(await waiting) == [6, 7]
    assert await fetch(at.nc, consumer, 2, wait=SHORT) == []


async def test_the_fetch_of_nats_py_waits_for_the_first_message(at: Place) -> None:
    stream, consumer = await pulling(at, 2)
    pull = await at.js.pull_subscribe_bind(consumer.name, stream)
    assert sequences(await pull.fetch(2)) == [1, 2]
    waiting = asyncio.create_task(pull.fetch(1, timeout=30))
    await at.raw.publish(f"{stream}.late", b"")
    assert sequences(await waiting) == [3]
    with pytest.raises(nats.errors.TimeoutError):
        await pull.fetch(1, timeout=SHORT)
    await pull.unsubscribe()


async def test_a_fetch_takes_no_more_bytes_than_it_may(at: Place) -> None:
    stream = await at.stream()
    for _ in range(4):
        await at.raw.publish(f"{stream}.x", b"x" * 1000)
    consumer = await at.consumer(stream)
    assert sequences(await fetch(at.nc, consumer, 10, max_bytes=2500)) == [1, 2]


async def test_messages_come_for_as_long_as_somebody_asks(at: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_MISSED", 100)  # a busy server is silent for a while
    stream, consumer = await pulling(at, 25)
    async with messages(at.nc, consumer, batch=10, expires=1.0, heartbeat=0.5) as found:
        seen = [(await anext(found)).metadata.sequence.stream for _ in range(25)]
        await asyncio.sleep(1.1)  # a request ends with nothing to give, and the next one follows
        for _ in range(15):
            await at.raw.publish(f"{stream}.late", b"")
        seen += [(await anext(found)).metadata.sequence.stream for _ in range(15)]
    assert seen == list(range(1, 41))
    assert (await at.raw.consumer_info(stream, consumer.name)).ack_pending == 40


async def test_messages_come_in_batches_for_as_long_as_somebody_asks(at: Place) -> None:
    _, consumer = await pulling(at, 6)
    batches = [sequences(await fetch(at.nc, consumer, 2, wait=1)) for _ in range(3)]
    assert batches == [[1, 2], [3, 4], [5, 6]]


async def test_an_endless_pull_ends_with_a_reason(at: Place) -> None:
    stream, consumer = await pulling(at, 1)
    async with messages(at.nc, consumer) as found:
        await anext(found)
        await at.raw.delete_consumer(stream, consumer.name)
        with pytest.raises(ConsumerGoneError, match="Consumer Deleted"):
            await anext(found)
    async with messages(at.nc, consumer, heartbeat=SHORT) as found:
        with pytest.raises(UnavailableError):
            await anext(found)
    silent = Consumer("S", "C", new_name())
    listening = await at.nc.subscribe(silent.next)
    with pytest.raises(UnavailableError, match="no answer of the consumer"):
        await fetch(at.nc, silent, 1, timeout=SHORT)
    async with messages(at.nc, silent, heartbeat=SHORT) as found:
        with pytest.raises(UnavailableError, match="no answer of the consumer"):
            await anext(found)
    await listening.unsubscribe()


ACKS: dict[str, tuple[Callable[[Place, Msg], Awaitable[Any]], bool]] = {
    "ack": (lambda _, one: one.ack(), False),
    "double ack": (lambda _, one: one.ack_sync(), False),
    "nak": (lambda _, one: one.nak(), True),
    "nak with delay": (lambda _, one: one.nak(delay=SHORT), True),
    "term": (lambda _, one: one.term(), False),
    "term with reason": (lambda at, one: term(at.nc, one, "no use"), False),
}


@pytest.mark.parametrize("kind", ACKS)
async def test_an_acknowledgement_of_each_kind_does_what_it_says(at: Place, kind: str) -> None:
    _, consumer = await pulling(at, 1, ack_wait=60 * SECOND)
    acknowledge, again = ACKS[kind]
    (one,) = await fetch(at.nc, consumer, 1)
    assert await state(at, consumer) == (0, 1, 0)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await acknowledge(at, one)
    if again:
        (second,) = await fetch(at.nc, consumer, 1, wait=WAIT_SECONDS)
        assert second.metadata.num_delivered == 2
        assert kind == "nak" or loop.time() - began >= SHORT
    else:
        await reaches(at, consumer, 1, 0, 0)


async def test_progress_keeps_a_message_from_being_delivered_again(at: Place) -> None:

    async def told_in_time() -> bool:
        """False where this machine is too busy to tell the server within a second."""
        _, consumer = await pulling(at, 1, ack_wait=SECOND)
        (one,) = await fetch(at.nc, consumer, 1)
        told = time.monotonic()
        for _ in range(5):
            await asyncio.sleep(0.25)
            before, told = told, time.monotonic()
            await one.in_progress()
            await at.nc.flush()
            if time.monotonic() - before > 0.8:
                return False
        found = await fetch(at.nc, consumer, 1)
        if time.monotonic() - told > 0.8:
            return False
        assert found == []
        (again,) = await fetch(at.nc, consumer, 1, wait=WAIT_SECONDS)
        assert again.metadata.num_delivered == 2
        return True

    await until(told_in_time, "progress is told in time")


async def test_the_reason_of_a_term_stands_in_the_servers_advisory(at: Place) -> None:
    _, consumer = await pulling(at, 1)
    subject = f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{consumer.stream}.{consumer.name}"
    advisories = await at.nc.subscribe(subject)
    await at.nc.flush()
    (one,) = await fetch(at.nc, consumer, 1)
    await term(at.nc, one, "no use")
    assert json.loads((await advisories.next_msg(timeout=30)).data)["reason"] == "no use"
    await advisories.unsubscribe()


@pytest.mark.parametrize(
    ("policy", "acknowledged", "wanted"),
    [("none", None, (4, 0, 0)), ("all", 3, (3, 1, 0)), ("explicit", 3, (0, 3, 0))],
)
async def test_an_ack_policy_says_what_one_acknowledgement_covers(
    at: Place, policy: str, acknowledged: int | None, wanted: tuple[int, int, int]
) -> None:
    _, consumer = await pulling(at, 4, ack_policy=policy)
    found = await fetch(at.nc, consumer, 4)
    if acknowledged is not None:
        await found[acknowledged - 1].ack_sync()
    await reaches(at, consumer, *wanted)


DELIVER: dict[str, tuple[dict[str, Any], list[int]]] = {
    "all": ({}, [1, 2, 3, 4, 5]),
    "last": ({}, [4, 5]),
    "new": ({}, [5]),
    "by_start_sequence": ({"opt_start_seq": 3}, [3, 4, 5]),
    "by_start_time": ({}, [4, 5]),
    "last_per_subject": ({"filter_subject": "{name}.>"}, [2, 3, 4, 5]),
}


@pytest.mark.parametrize("policy", DELIVER)
async def test_a_deliver_policy_says_where_a_consumer_begins(at: Place, policy: str) -> None:
    given, wanted = DELIVER[policy]
    name = await at.stream(3)
    await asyncio.sleep(0.01)
    middle = datetime.now(UTC).isoformat()
    await at.raw.publish(f"{name}.1", b"")
    config = {
        key: value.format(name=name) if isinstance(value, str) else value for key, value in given.items()
    }
    if policy == "by_start_time":
        config["opt_start_time"] = middle
    consumer = await at.consumer(name, deliver_policy=policy, **config)
    await at.raw.publish(f"{name}.new", b"")
    # The server acknowledges a message before its consumers learn of it (nats-server 2.15.1,
    # `signalConsumersLoop`), so a pull that does not wait may miss the newest.
    assert sequences(await fetch(at.nc, consumer, len(wanted), wait=WAIT_SECONDS)) == wanted
    assert await fetch(at.nc, consumer, 1) == []


async def test_every_setting_of_a_consumer_is_kept_as_it_was_given(at: Place) -> None:
    stream, name, theirs = await at.stream(), new_name(), new_name()
    asked: dict[str, Any] = {
        "description": "all that a pull consumer can be told",
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": SECOND,
        "max_deliver": 4,
        "backoff": [SECOND, 2 * SECOND],
        "filter_subjects": [f"{stream}.a", f"{stream}.b"],
        "replay_policy": "original",
        "max_waiting": 17,
        "max_ack_pending": 18,
        "headers_only": True,
        "num_replicas": 1,
        "mem_storage": True,
        "inactive_threshold": 600 * SECOND,
    }
    whole = {**asked, "metadata": {"owner": "us"}}
    await at.raw.create_consumer(stream, {**whole, "name": name, "durable_name": name})
    model = {**whole, "name": theirs, "durable_name": theirs}
    await at.js.add_consumer(stream, api.ConsumerConfig.from_response(model))
    for one in (name, theirs):
        kept = (await at.raw.consumer_info(stream, one)).config
        assert {key: kept.get(key) for key in asked} == asked
        assert (kept["durable_name"], kept["metadata"]["owner"]) == (one, "us")


async def test_a_consumer_filters_gives_headers_only_and_gives_up(at: Place) -> None:
    stream = await at.stream(3)
    wanted = {"filter_subjects": [f"{stream}.1", f"{stream}.3"], "headers_only": True}
    consumer = await at.consumer(stream, **wanted, max_deliver=2, max_ack_pending=1)
    for _ in range(2):
        (first,) = await fetch(at.nc, consumer, 1, wait=WAIT_SECONDS)
        assert (first.subject, first.data, (first.headers or {})["Nats-Msg-Size"]) == (
            f"{stream}.1",
            b"",
            "1",
        )
        await first.nak()
    assert sequences(await fetch(at.nc, consumer, 1, wait=WAIT_SECONDS)) == [3]


async def test_a_consumer_without_a_durable_name_goes_when_nobody_asks(at: Place) -> None:
    stream, name = await at.stream(1), new_name()
    await at.raw.create_consumer(stream, {"name": name, "inactive_threshold": SECOND // 10})
    assert len(await fetch(at.nc, Consumer(stream, name, at.prefix), 1)) == 1

    async def gone() -> bool:
        return await at.raw.find_consumer(stream, name) is None

    await until(gone, "the consumer is gone")


async def test_a_consumer_is_found_bound_again_and_deleted(at: Place) -> None:
    stream, consumer = await pulling(at, 2)
    subscription = await at.js.pull_subscribe("", durable=consumer.name, stream=stream)
    (one,) = await subscription.fetch(1)
    await one.ack_sync()
    assert (await subscription.consumer_info()).config.durable_name == consumer.name
    assert (await state(at, consumer)) == (1, 0, 1)
    await subscription.unsubscribe()
    found = await at.raw.find_consumer(stream, consumer.name)
    assert found is not None
    assert found.config["ack_policy"] == "explicit"
    assert await at.js.delete_consumer(stream, consumer.name)
    assert await at.raw.find_consumer(stream, consumer.name) is None
    made = await at.js.pull_subscribe(f"{stream}.>", durable=consumer.name)
    assert sequences(await made.fetch(2)) == [1, 2]
    await made.unsubscribe()
