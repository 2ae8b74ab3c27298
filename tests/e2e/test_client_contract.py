"""The client document, in both domains and from either side: contexts, publishing, errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
import nats.js.errors
import pytest

from agent.jetstream import ApiError, JetStream, UnavailableError
from agent.jetstream.info import MaxAckPendingError, PubAck
from agent.jetstream.programs import AckWindow
from tests.harness.places import Place, new_name
from tests.harness.wait import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHORT = 0.1


async def test_a_context_means_the_domain_it_is_given_and_without_one_that_of_its_server(at: Place) -> None:
    name = await at.stream()
    for prefix in (at.prefix, at.own_prefix):
        assert (await JetStream(at.nc, prefix).stream_info(name)).name == name
        assert (await at.nc.jetstream(prefix=prefix).stream_info(name)).config.name == name
    assert (await at.nc.jetstream(domain=at.domain).stream_info(name)).config.name == name
    own = JetStream(at.nc)
    assert (await own.api("INFO"))["domain"] == at.side
    if at.side == at.domain:
        assert (await own.stream_info(name)).name == name
    else:
        with pytest.raises(ApiError, match="stream not found"):
            await own.stream_info(name)


async def test_a_call_ends_within_its_timeout_where_nobody_answers(at: Place) -> None:
    prefix = f"{new_name()}.API"
    silent = await at.nc.subscribe(f"{prefix}.>")
    for call, error in (
        (JetStream(at.nc, prefix, timeout=SHORT).stream_info("S"), UnavailableError),
        (JetStream(at.nc, prefix).api("STREAM.INFO.S", timeout=SHORT), UnavailableError),
        (at.nc.jetstream(prefix=prefix, timeout=SHORT).stream_info("S"), nats.errors.TimeoutError),
    ):
        began = time.monotonic()
        with pytest.raises(error):
            await call
        assert time.monotonic() - began < 5
    await silent.unsubscribe()


async def test_a_publish_is_acknowledged_by_the_stream_and_names_its_domain(at: Place) -> None:
    name = await at.stream()
    async with AckWindow(at.nc) as window:
        futures = [await window.publish(f"{name}.x", b"%d" % number) for number in range(3)]
        assert [await one for one in futures] == [PubAck(name, seq, at.domain, False) for seq in (1, 2, 3)]
        assert window.in_flight == 0
    ack = await at.js.publish(f"{name}.x", b"4", headers={"Mine": "yes"})
    assert (ack.stream, ack.seq, ack.domain) == (name, 4, at.domain)
    stored = await at.js.get_msg(name, 4)
    assert (stored.data, stored.headers) == (b"4", {"Mine": "yes"})


async def test_a_window_that_is_full_waits_for_an_acknowledgement_or_fails(at: Place) -> None:
    name = await at.stream(no_ack=True)
    async with AckWindow(at.nc, max_ack_inflight=2, wait=False) as window:
        for _ in range(2):
            await window.publish(f"{name}.x", b"")
        with pytest.raises(MaxAckPendingError, match="2 acknowledgements are in flight"):
            await window.publish(f"{name}.x", b"never sent")
        assert window.in_flight == 2
    async with AckWindow(at.nc, max_ack_inflight=2, ack_timeout=SHORT) as window:
        for _ in range(5):
            await window.publish(f"{name}.x", b"")
            assert window.in_flight <= 2

    async def stored() -> bool:
        return (await at.raw.stream_info(name)).messages == 7

    await until(stored, "all that was sent is stored, and nothing else")


async def test_an_acknowledgement_that_does_not_come_ends_in_time_and_frees_its_place(at: Place) -> None:
    name, answering = await at.stream(no_ack=True), await at.stream()
    async with AckWindow(at.nc, max_ack_inflight=1, wait=False, ack_timeout=SHORT) as window:
        lost = await window.publish(f"{name}.x", b"")
        with pytest.raises(UnavailableError, match="did not acknowledge"):
            await lost
        await window.publish(f"{answering}.x", b"")  # finds the place free
    async with AckWindow(at.nc) as window:
        left = await window.publish(f"{name}.x", b"")
    with pytest.raises(UnavailableError, match="closed"):
        await left


async def test_a_message_id_is_stored_once(at: Place) -> None:
    name = await at.stream()
    for seq, duplicate in ((1, False), (1, True)):
        async with AckWindow(at.nc) as window:
            ack = await (await window.publish(f"{name}.x", b"", {"Nats-Msg-Id": "uuid-123"}))
        assert (ack.seq, ack.duplicate) == (seq, duplicate)
    assert (await at.js.publish(f"{name}.x", b"", headers={"Nats-Msg-Id": "uuid-123"})).duplicate
    assert (await at.raw.stream_info(name)).messages == 1


@pytest.mark.parametrize(
    ("header", "right", "wrong", "err_code"),
    [
        ("Nats-Expected-Stream", "{name}", "OTHER", 10060),
        ("Nats-Expected-Last-Sequence", "1", "7", 10071),
        ("Nats-Expected-Last-Subject-Sequence", "1", "7", 10071),
        ("Nats-Expected-Last-Msg-Id", "first", "second", 10070),
    ],
)
async def test_a_publish_that_expects_something_else_is_refused(
    at: Place, header: str, right: str, wrong: str, err_code: int
) -> None:
    name = await at.stream()
    await at.raw.publish(f"{name}.x", b"", {"Nats-Msg-Id": "first"})
    with pytest.raises(ApiError) as ours:
        await at.raw.publish(f"{name}.x", b"", {header: wrong})
    with pytest.raises(nats.js.errors.APIError) as theirs:
        await at.js.publish(f"{name}.x", b"", headers={header: wrong})
    async with AckWindow(at.nc) as window:
        with pytest.raises(ApiError) as windowed:
            await (await window.publish(f"{name}.x", b"", {header: wrong}))
        assert {ours.value.err_code, theirs.value.err_code, windowed.value.err_code} == {err_code}
        assert (await (await window.publish(f"{name}.x", b"", {header: right.format(name=name)}))).seq == 2


ERRORS: dict[str, tuple[Callable[[Place, str], Awaitable[Any]], int]] = {
    "no such stream": (lambda at, _: at.raw.stream_info(new_name()), 10059),
    "a stream of this name that is another": (
        lambda at, name: at.raw.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [new_name()]}),
        10058,
    ),
    "a subject that another stream has": (
        lambda at, name: at.raw.api(
            f"STREAM.CREATE.{name}x", {"name": f"{name}x", "subjects": [f"{name}.a"]}
        ),
        10065,
    ),
    "no such consumer": (lambda at, name: at.raw.consumer_info(name, "none"), 10014),
    "flow control of a consumer that does not push": (
        lambda at, name: at.raw.create_consumer(name, {"name": "c", "flow_control": True}),
        10089,
    ),
    "no such message": (lambda at, name: at.raw.api(f"STREAM.MSG.GET.{name}", {"seq": 9}), 10037),
    "a name that is none": (lambda at, _: at.raw.api("STREAM.CREATE.A", {"name": "B"}), 10056),
}


@pytest.mark.parametrize("case", ERRORS)
async def test_a_refusal_carries_the_servers_own_number_and_words(at: Place, case: str) -> None:
    call, err_code = ERRORS[case]
    name = await at.stream()
    with pytest.raises(ApiError) as refused:
        await call(at, name)
    assert refused.value.err_code == err_code, refused.value
    assert refused.value.description
    assert str(err_code) in str(refused.value)
    assert refused.value.code in (400, 404, 500)


async def test_errors_are_told_apart_by_their_type(at: Place) -> None:
    with pytest.raises(nats.js.errors.NotFoundError):
        await at.js.stream_info(new_name())
    with pytest.raises(nats.js.errors.BadRequestError):
        await at.js.add_stream(name=await at.stream(), subjects=[new_name()])
    nowhere = at.nc.jetstream(domain="nowhere")
    with pytest.raises(nats.js.errors.ServiceUnavailableError):
        await nowhere.account_info()
    with pytest.raises(UnavailableError):
        await JetStream(at.nc, "$JS.nowhere.API").api("INFO")
    with pytest.raises(nats.js.errors.NoStreamResponseError):
        await at.js.publish(new_name(), b"")
    async with AckWindow(at.nc) as window:
        with pytest.raises(UnavailableError, match="no stream takes this subject: 503"):
            await (await window.publish(new_name(), b""))


async def test_two_windows_share_a_connection_without_mixing_their_answers(at: Place) -> None:
    name = await at.stream()
    async with AckWindow(at.nc, max_ack_inflight=10) as one, AckWindow(at.nc, max_ack_inflight=10) as two:
        futures = [await window.publish(f"{name}.x", b"") for _ in range(100) for window in (one, two)]
        acks = await asyncio.gather(*futures)
    assert [ack.seq for ack in acks] == list(range(1, 201))
