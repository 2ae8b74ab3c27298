"""The durable consumers of the leaf's mirror of its commands, as requests to its server: listed, paused, made
and moved. Decides nothing and keeps nothing; every function raises `JetStreamError`."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

from nats.aio.client import Client

from agent.contract import COMMANDS, CommandKey
from agent.jetstream import ApiError, ConsumerInfo, JetStream
from agent.jetstream.read_headers import StoredHeaders, read_headers
from agent.leaf.link.command_mirror.positions import HELD_UNTIL, LEAVING_UNTIL, is_held, movable, placed_at

READ_SECONDS: Final = 10.0
"""How long a mirror that is to be deleted stays for programs that are reading it."""
SETTLE_SECONDS: Final = 5.0
"""How long it stays for the acknowledgements of what was delivered."""
_LOOK_SECONDS: Final = 0.1


async def durable(js: JetStream) -> list[ConsumerInfo]:
    """Those that outlive the connection of their program."""
    return [info async for info in js.consumers(COMMANDS) if info.config.get("durable_name")]


async def settled(js: JetStream) -> list[ConsumerInfo]:
    """The consumers once programs have read what is there and acknowledged it, or do not within a bound; from
    then on nothing is delivered."""
    consumers = await _once(js, _is_reading, READ_SECONDS)
    given = {info.name: info.config for info in consumers}
    for info in consumers:
        if not is_held(info.config):
            await pause(js, info.name, LEAVING_UNTIL)
    consumers = await _once(js, lambda info: info.ack_pending > 0, SETTLE_SECONDS)
    return [dataclasses.replace(info, config=given.get(info.name, info.config)) for info in consumers]


def _is_reading(info: ConsumerInfo) -> bool:
    return info.pending > 0 and info.waiting + info.ack_pending > 0 and not is_held(info.config)


async def _once(js: JetStream, busy: Callable[[ConsumerInfo], bool], seconds: float) -> list[ConsumerInfo]:
    """The consumers as soon as none was busy at two looks in a row, for a program is idle for an instant from
    one command to the next; or after so many seconds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    idle = 0
    while True:
        consumers = await durable(js)
        idle = 0 if any(map(busy, consumers)) else idle + 1
        if not consumers or idle == 2 or loop.time() >= end:
            return consumers
        await asyncio.sleep(_LOOK_SECONDS)


async def commands(nc: Client, js: JetStream, config: Mapping[str, Any]) -> list[CommandKey]:
    """The commands of the mirror that a consumer of this configuration is for, all without one."""
    found: list[CommandKey] = []

    def take(message: StoredHeaders) -> None:
        found.append((message.seq, message.stored_ns))

    wanted = {key: config[key] for key in ("filter_subject", "filter_subjects") if config.get(key)}
    await read_headers(nc, js, COMMANDS, {"deliver_policy": "all", **wanted}, take)
    return found


async def hold(js: JetStream, name: str, config: Mapping[str, Any]) -> ConsumerInfo:
    """Make a consumer that nothing is delivered to, or let nothing be delivered to the one that a program has
    made meanwhile."""
    if await js.find_consumer(COMMANDS, name) is None:
        await js.create_consumer(COMMANDS, {**movable(config), "pause_until": HELD_UNTIL})
    await pause(js, name, HELD_UNTIL)
    return await js.consumer_info(COMMANDS, name)


async def move(js: JetStream, name: str, config: Mapping[str, Any], start: int) -> None:
    """Let a consumer that is held go on from `start`."""
    try:
        await js.api(f"CONSUMER.RESET.{COMMANDS}.{name}", {"seq": start})
    except ApiError:
        # Its deliver policy does not let it be moved there.
        await js.delete_consumer(COMMANDS, name)
        await js.create_consumer(COMMANDS, {**placed_at(config, start), "pause_until": HELD_UNTIL})


async def pause(js: JetStream, name: str, until: str | None) -> None:
    """Pause a consumer until then (RFC 3339), or let it go on."""
    await js.api(f"CONSUMER.PAUSE.{COMMANDS}.{name}", None if until is None else {"pause_until": until})
