"""The streams of a link, made through the raw API as the identities that make them in the product; and a
JetStream of several servers, asked again where nobody answered: a request that comes while its leader changes
is dropped without a word (seen on 2.15.1)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from nats.aio.client import Client

from agent.contract import (
    DEFAULT_CLASS,
    aggregate,
    api_prefix,
    command_consumer,
    command_deliver,
    deliver_subject,
    hub_api,
    leaf_stream,
    leaf_subjects,
    link_consumer,
)
from agent.jetstream import JetStream, RawMessage, UnavailableError
from tests.harness.servers import Leaf, api
from tests.harness.wait import SERVER_RETRY_SECONDS, until

AGGREGATE = aggregate(0)
STREAM = {"storage": "file", "retention": "limits", "discard": "new", "max_bytes": 64 * 1024**2}
_AT_ONCE = 100
"""Messages that are asked for together."""


async def make_leaf_stream(agent: Client, domain: str, epoch: str, cls: str = DEFAULT_CLASS) -> None:
    """The leaf's stream and the durable consumer through which the hub sources it."""
    stream = leaf_stream(domain, cls)
    await api(
        agent,
        f"STREAM.CREATE.{stream}",
        {**STREAM, "name": stream, "subjects": [leaf_subjects(domain, cls)], "compression": "s2"},
    )
    await make_link_consumer(agent, domain, epoch, cls, deliver_policy="all")


async def make_link_consumer(agent: Client, domain: str, epoch: str, cls: str, **begin: str | int) -> None:
    """That consumer; `begin` says where it begins."""
    stream, consumer = leaf_stream(domain, cls), link_consumer(epoch)
    config = {
        "durable_name": consumer,
        "ack_policy": "flow_control",
        "max_ack_pending": 10_000,
        "deliver_subject": deliver_subject(domain, cls, epoch),
        **begin,
    }
    await api(agent, f"CONSUMER.CREATE.{stream}.{consumer}", {"stream_name": stream, "config": config})


async def make_aggregate(
    registrar: Client, epochs: dict[str, str], name: str = AGGREGATE, subjects: Sequence[str] = ()
) -> None:
    """The hub's stream that sources every domain in `epochs`, and listens to `subjects` itself."""
    sources = [
        {
            "name": leaf_stream(domain, "normal"),
            "external": {"api": api_prefix(domain), "deliver": ""},
            "consumer": {
                "name": link_consumer(epoch),
                "deliver_subject": deliver_subject(domain, "normal", epoch),
            },
            "subject_transforms": [{"src": "tel.*.>", "dest": f"tel.{domain}.>"}],
        }
        for domain, epoch in epochs.items()
    ]
    await api(
        registrar,
        f"STREAM.CREATE.{name}",
        {**STREAM, "name": name, "sources": sources, "subjects": [*subjects], "allow_direct": True},
    )


async def make_commands(registrar: Client, domain: str, epoch: str) -> None:
    """The hub's stream of commands and one leaf's consumer of it."""
    await api(
        registrar,
        "STREAM.CREATE.COMMANDS",
        {**STREAM, "name": "COMMANDS", "subjects": ["cmd.>"], "max_consumers": -1},
    )
    config = {
        "durable_name": command_consumer(domain),
        "ack_policy": "flow_control",
        "filter_subject": f"cmd.{domain}.>",
        "deliver_subject": command_deliver(domain, epoch),
    }
    subject = f"CONSUMER.CREATE.COMMANDS.{command_consumer(domain)}.cmd.{domain}.>"
    await api(registrar, subject, {"stream_name": "COMMANDS", "config": config})


async def make_mirror(agent: Client, domain: str, epoch: str, *, tenant: bool = False) -> None:
    """The leaf's mirror of its commands."""
    mirror = {
        "name": "COMMANDS",
        "external": {"api": hub_api(tenant=tenant), "deliver": ""},
        "consumer": {"name": command_consumer(domain), "deliver_subject": command_deliver(domain, epoch)},
    }
    await api(agent, "STREAM.CREATE.COMMANDS", {**STREAM, "name": "COMMANDS", "mirror": mirror})


async def stored_messages(js: JetStream, stream: str, first: int = 1) -> list[RawMessage]:
    """What a stream holds from a sequence on, in its order."""
    info = await js.stream_info(stream)
    found: list[RawMessage] = []
    for begin in range(max(first, info.first, 1), info.last + 1, _AT_ONCE):
        seqs = range(begin, min(begin + _AT_ONCE, info.last + 1))
        got = await asyncio.gather(*(js.get_message(stream, seq=seq) for seq in seqs))
        found += [message for message in got if message is not None]
    return found


async def held(client: Client, stream: str, messages: int) -> dict[str, Any]:
    """The stream's info, once it holds so many messages."""
    async with asyncio.timeout(SERVER_RETRY_SECONDS):
        while True:
            info = await api(client, f"STREAM.INFO.{stream}")
            if info["state"]["messages"] >= messages:
                return info
            await asyncio.sleep(0.02)


_ANSWER_SECONDS = 6.0
"""A question that is not answered by then is lost."""
_TRIES = 15
_TRY_SECONDS = 3.0
_PAUSE = 0.2

_Answer = TypeVar("_Answer")


class PatientJetStream(JetStream):
    """Requests that may be made twice without harm, made until they are answered; with a `timeout` they are
    made once."""

    async def api(
        self, verb: str, request: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        once = super().api
        if timeout is not None:
            return await once(verb, request, timeout)
        return await _insisted(lambda: once(verb, request, _TRY_SECONDS))

    async def publish(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> int:
        once = super().publish
        told = {"Nats-Msg-Id": uuid.uuid4().hex, **(headers or {})}
        if timeout is not None:
            return await once(subject, data, told, timeout)
        return await _insisted(lambda: once(subject, data, told, _TRY_SECONDS))


async def _insisted(ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
    for _ in range(_TRIES - 1):
        try:
            return await ask()
        except UnavailableError:
            await asyncio.sleep(_PAUSE)  # that nobody listens yet is answered at once
    return await ask()


async def ask_again(registrar: Client, leaf: Leaf) -> None:
    """Have a hub that was started again ask the leaf for what it does not hold, by removing the source and
    adding it again as the registrar does; returns once the leaf has answered. To be called before anything is
    stored at the leaf: left alone, the hub's server loses its first question because the link is not up yet,
    and asks again when a message comes. A leaf that is slow then may send what it has before it says where it
    begins; the hub takes that for what it holds and acknowledges it, and never stores it (seen on 2.15.1)."""
    js, source = PatientJetStream(registrar), leaf_stream(leaf.domain, DEFAULT_CLASS)

    async def has_answered() -> bool:
        sources = (await js.stream_info(AGGREGATE)).sources
        return any(one["name"] == source and one["active"] >= 0 for one in sources)

    async with asyncio.timeout(SERVER_RETRY_SECONDS):
        await leaf.wait_linked()
        while not await has_answered():
            config = (await js.stream_info(AGGREGATE)).config
            others = [one for one in config["sources"] if one["name"] != source]
            await js.update_stream({**config, "sources": others})
            await js.update_stream(config)
            with suppress(AssertionError):
                await until(has_answered, "the leaf answers", _ANSWER_SECONDS)
