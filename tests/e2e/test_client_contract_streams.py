"""The client document, in both domains and from either side: streams, their messages, and long lists."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from nats.js import api
from nats.js.errors import APIError, NotFoundError

from agent.jetstream import MESSAGE_NOT_FOUND, STREAM_NOT_FOUND, ApiError
from tests.harness.places import Place, new_name
from tests.harness.wait import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

MINUTE = 60 * 10**9


def everything(name: str) -> dict[str, Any]:
    """Each field of the document that a stream of one server takes at once; `no_ack`, `sealed`, mirrors,
    sources and placement have tests of their own."""
    return {
        "name": name,
        "description": "all that a stream can be told",
        "subjects": [f"{name}.>"],
        "retention": "limits",
        "max_consumers": 7,
        "max_msgs": 1000,
        "max_msgs_per_subject": 100,
        "max_bytes": 1_000_000,
        "max_age": 60 * MINUTE,
        "max_msg_size": 1000,
        "discard": "new",
        "discard_new_per_subject": True,
        "storage": "file",
        "num_replicas": 1,
        "duplicate_window": MINUTE,
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "compression": "s2",
        "first_seq": 100,
        "subject_transform": {"src": f"{name}.in.>", "dest": f"{name}.out.>"},
        "republish": {"src": f"{name}.out.>", "dest": f"copy.{name}.>", "headers_only": True},
    }


async def test_every_setting_of_a_stream_is_kept_as_it_was_given(at: Place) -> None:
    ours, theirs = everything(new_name()), everything(new_name())
    await at.raw.api(f"STREAM.CREATE.{ours['name']}", {**ours, "metadata": {"owner": "us"}})
    model = api.StreamConfig.from_response({**theirs, "metadata": {"owner": "us"}})
    await at.js.add_stream(model)
    for asked in (ours, theirs):
        kept = (await at.raw.stream_info(asked["name"])).config
        assert {key: kept.get(key) for key in asked} == asked
        assert kept["metadata"]["owner"] == "us"
        assert (await at.js.stream_info(asked["name"])).config.max_age == 3600


async def test_a_stream_transforms_and_republishes_what_it_stores(at: Place) -> None:
    asked = everything(new_name())
    name = asked["name"]
    await at.raw.get_or_create_stream(asked)
    copies = await at.nc.subscribe(f"copy.{name}.>")
    await at.nc.flush()
    assert await at.raw.publish(f"{name}.in.x", b"1") == 100
    assert (await at.js.get_msg(name, 100)).subject == f"{name}.out.x"
    assert (await copies.next_msg(timeout=30)).subject == f"copy.{name}.x"
    await copies.unsubscribe()


@pytest.mark.parametrize(
    ("retention", "left"),
    [("limits", 3), ("interest", 2), ("workqueue", 2)],
    ids=["limits", "interest", "work"],
)
async def test_a_retention_policy_keeps_what_it_says(at: Place, retention: str, left: int) -> None:
    name = await at.stream(retention=retention)
    consumer = await at.consumer(name)
    for number in range(3):
        await at.raw.publish(f"{name}.x", b"%d" % number)
    (first,) = await (await at.js.pull_subscribe_bind(consumer.name, name)).fetch(1)
    await first.ack_sync()

    async def kept() -> bool:
        return (await at.raw.stream_info(name)).messages == left

    await until(kept, f"{left} messages are left")


async def test_a_stream_is_made_found_changed_and_deleted(at: Place) -> None:
    name = new_name()
    config = {"name": name, "subjects": [f"{name}.>"], "max_msgs": 5}
    made = await at.raw.get_or_create_stream(config)
    assert (await at.raw.get_or_create_stream({**config, "max_msgs": 9})).config["max_msgs"] == 5
    changed = await at.raw.ensure_stream({**config, "max_msgs": 9})
    assert (changed.config["max_msgs"], changed.created) == (9, made.created)
    assert (await at.js.update_stream(name=name, subjects=[f"{name}.>"], max_msgs=8)).config.max_msgs == 8
    assert await at.js.find_stream_name_by_subject(f"{name}.x") == name
    assert [one async for one in at.raw.stream_names(f"{name}.*")] == [name]
    assert [one.name async for one in at.raw.streams(f"{name}.>")] == [name]
    with pytest.raises(NotFoundError):
        await at.js.find_stream_name_by_subject(new_name())
    assert await at.js.delete_stream(name)
    with pytest.raises(ApiError) as gone:
        await at.raw.stream_info(name)
    assert gone.value.err_code == STREAM_NOT_FOUND
    assert (await at.raw.ensure_stream(config)).config["max_msgs"] == 5


async def test_a_sealed_stream_takes_nothing_more(at: Place) -> None:
    name = await at.stream(2)
    config = (await at.raw.stream_info(name)).config
    await at.raw.update_stream({**config, "sealed": True})
    with pytest.raises(ApiError, match="sealed"):
        await at.raw.publish(f"{name}.x", b"")
    with pytest.raises(APIError, match="sealed"):
        await at.js.delete_msg(name, 1)


@pytest.mark.parametrize("direct", [False, True], ids=["asked", "direct"])
async def test_a_stored_message_is_read_by_sequence_and_as_the_last_of_its_subject(
    at: Place, direct: bool
) -> None:
    name = await at.stream(3, allow_direct=True)
    await at.raw.publish(f"{name}.1", b"again", {"Kind": "late"})
    assert (await at.js.get_msg(name, 2, direct=direct)).data == b"2"
    last = await at.js.get_last_msg(name, f"{name}.1", direct=direct)
    assert (last.seq, last.data, (last.headers or {})["Kind"]) == (4, b"again", "late")
    following = await at.js.get_msg(name, seq=2, subject=f"{name}.1", next=True, direct=direct)
    assert following.seq == 4
    with pytest.raises(NotFoundError):
        await at.js.get_msg(name, 99, direct=direct)


async def test_our_own_layer_reads_the_same_and_none_for_nothing(at: Place) -> None:
    name = await at.stream(3)
    found = await at.raw.get_message(name, seq=2)
    assert found is not None
    assert (found.subject, found.data) == (f"{name}.2", b"2")
    last = await at.raw.get_message(name, last_by_subject=f"{name}.>")
    assert last is not None
    assert last.seq == 3
    assert await at.raw.get_message(name, seq=99) is None


async def test_messages_are_deleted_one_by_one_by_subject_and_up_to_a_sequence(at: Place) -> None:
    name = await at.stream(9)
    assert await at.js.delete_msg(name, 1)
    with pytest.raises(ApiError) as gone:
        await at.raw.api(f"STREAM.MSG.GET.{name}", {"seq": 1})
    assert gone.value.err_code == MESSAGE_NOT_FOUND
    assert await at.js.purge_stream(name, subject=f"{name}.2")
    assert (await at.raw.stream_info(name)).messages == 7
    assert await at.raw.purge(name, 4) == 2
    assert await at.js.purge_stream(name, keep=2)
    state = await at.raw.stream_info(name)
    assert (state.first, state.last, state.messages) == (8, 9, 2)
    assert await at.js.purge_stream(name)
    assert (await at.raw.stream_info(name)).messages == 0


def small(name: str, subject: str) -> dict[str, Any]:
    """A stream that costs little."""
    return {"name": name, "subjects": [subject], "storage": "memory"}


async def each(names: list[str], call: Callable[[str], Awaitable[Any]]) -> None:
    """A call for every name, some at a time."""
    for first in range(0, len(names), 100):
        await asyncio.gather(*(call(name) for name in names[first : first + 100]))


async def test_lists_longer_than_a_page_are_read_whole_and_only_as_far_as_they_are_asked_for(
    at: Place,
) -> None:
    token, count = new_name(), 1030  # a page has 1,024 names, or 256 states
    names = [f"{token}-{number:04}" for number in range(count)]
    await each(names, lambda name: at.raw.api(f"STREAM.CREATE.{name}", small(name, f"{token}.{name}")))
    try:
        assert sorted([one async for one in at.raw.stream_names(f"{token}.>")]) == names
        assert sorted([one.name async for one in at.raw.streams(f"{token}.>")]) == names
        page = await at.raw.api("STREAM.NAMES", {"subject": f"{token}.>"})
        assert (len(page["streams"]), page["total"]) == (1024, count)
        theirs = [{one.config.name for one in await at.js.streams_info(offset)} for offset in (0, 256)]
        assert ([len(one) for one in theirs], theirs[0] & theirs[1]) == ([256, 256], set())
        before = (await at.raw.api("INFO"))["api"]["total"]
        assert await anext(at.raw.stream_names(f"{token}.>")) in names
        assert (await at.raw.api("INFO"))["api"]["total"] == before + 2
    finally:
        await each(names, lambda name: at.raw.api(f"STREAM.DELETE.{name}"))


async def test_the_consumers_of_a_stream_are_listed_whole(at: Place) -> None:
    stream, count = await at.stream(storage="memory"), 300
    names = [f"C{number:03}" for number in range(count)]
    await each(names, lambda name: at.raw.create_consumer(stream, {"name": name, "mem_storage": True}))
    assert sorted(await at.raw.consumer_names(stream)) == names
    theirs = await at.js.consumers_info(stream), await at.js.consumers_info(stream, offset=256)
    assert sorted(one.name for page in theirs for one in page) == names
    assert isinstance(theirs[0][0], api.ConsumerInfo)
