"""Reads the command mirror and manages its durable consumers, without state. Functions raise
`JetStreamError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from msgspec import structs
from nats.aio.client import Client

from agent.contract import COMMANDS, CommandKey, command_subjects
from agent.jetstream import (
    STREAM_NOT_FOUND,
    ApiError,
    ConsumerInfo,
    JetStream,
    nanoseconds,
    unless_refused,
)
from agent.jetstream.readers import StoredHeaders, read_headers
from agent.leaf import stream_configs
from agent.leaf.link.command_mirror.decide import MirrorInfo
from agent.leaf.link.command_mirror.positions import (
    HELD_UNTIL,
    LEAVING_UNTIL,
    is_held,
    is_leaving,
    movable,
    placed_at,
)

READ_SECONDS: Final = 10.0
"""Wait for readers before a deletion."""
SETTLE_SECONDS: Final = 5.0
"""Wait for acknowledgements."""
_LOOK_SECONDS: Final = 0.1


async def read_mirror(js: JetStream, api: str, domain: str, last_out: int) -> MirrorInfo | None:
    """Return the mirror. Its last sequence is its newest command's or `last_out`; the stream's may be ahead
    of both.
    """
    with unless_refused(STREAM_NOT_FOUND):
        info = await js.stream_info(COMMANDS)
        newest = await js.get_message(COMMANDS, last_by_subject=command_subjects(domain))
        mirror = info.config.get("mirror") or {}
        return MirrorInfo(
            last=max(last_out, 0 if newest is None else newest.seq),
            newest=None if newest is None else (newest.seq, nanoseconds(newest.time)),
            deliver=(mirror.get("consumer") or {}).get("deliver_subject", ""),
            origin=(info.config.get("metadata") or {}).get(stream_configs.ORIGIN_METADATA, ""),
            elsewhere=(mirror.get("external") or {}).get("api", api) != api,
            created=info.created,
        )
    return None


async def durable(js: JetStream) -> list[ConsumerInfo]:
    """Return durable consumers."""
    return [info async for info in js.consumers(COMMANDS) if info.config.get("durable_name")]


async def settled(js: JetStream) -> list[ConsumerInfo]:
    """Wait within a bound until programs read and acknowledged everything; returns consumers, with delivery
    stopped.
    """
    consumers = await _once(js, _is_reading, READ_SECONDS)
    configs = {info.name: info.config for info in consumers}
    await keep_paused(js, consumers, LEAVING_UNTIL)
    consumers = await _once(js, lambda info: info.ack_pending > 0, SETTLE_SECONDS, LEAVING_UNTIL)
    return [structs.replace(info, config=configs.get(info.name, info.config)) for info in consumers]


def _is_reading(info: ConsumerInfo) -> bool:
    return info.pending > 0 and info.waiting + info.ack_pending > 0 and not is_held(info.config)


async def _once(
    js: JetStream, busy: Callable[[ConsumerInfo], bool], seconds: float, paused_until: str | None = None
) -> list[ConsumerInfo]:
    """Return consumers once idle in two looks, as programs pause between commands; keeps them paused."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    idle = 0
    while True:
        consumers = await durable(js)
        is_busy = any(map(busy, consumers))
        if paused_until is not None and await keep_paused(js, consumers, paused_until):
            is_busy = True
        idle = 0 if is_busy else idle + 1
        if not consumers or idle == 2 or loop.time() >= end:
            return consumers
        await asyncio.sleep(_LOOK_SECONDS)


async def keep_paused(js: JetStream, consumers: Iterable[ConsumerInfo], until: str) -> bool:
    """Pause unpaused consumers; returns whether any. A program's create may lift a pause in nats-server."""
    lifted = [info for info in consumers if not (is_held(info.config) or is_leaving(info.config))]
    for info in lifted:
        await pause(js, info.name, until)
    return bool(lifted)


async def all_held(js: JetStream, names: Collection[str]) -> None:
    """Wait within a bound until these consumers stay paused."""
    loop = asyncio.get_running_loop()
    end = loop.time() + SETTLE_SECONDS
    held = 0
    while held < 2 and loop.time() < end:
        consumers = [info for info in await durable(js) if info.name in names]
        held = 0 if await keep_paused(js, consumers, HELD_UNTIL) else held + 1
        await asyncio.sleep(_LOOK_SECONDS)


async def commands(nc: Client, js: JetStream, config: Mapping[str, Any]) -> list[CommandKey]:
    """Return the mirror's commands for a configuration, or all."""
    keys: list[CommandKey] = []

    def take(message: StoredHeaders) -> None:
        keys.append((message.seq, message.stored_ns))

    filters = {key: config[key] for key in ("filter_subject", "filter_subjects") if config.get(key)}
    await read_headers(nc, js, COMMANDS, {"deliver_policy": "all", **filters}, take)
    return keys


async def hold(js: JetStream, name: str, config: Mapping[str, Any]) -> ConsumerInfo:
    """Create a paused consumer, or pause an existing one."""
    if await js.find_consumer(COMMANDS, name) is None:
        await js.create_consumer(COMMANDS, {**movable(config), "pause_until": HELD_UNTIL})
    await pause(js, name, HELD_UNTIL)
    return await js.consumer_info(COMMANDS, name)


async def move(js: JetStream, name: str, config: Mapping[str, Any], start: int) -> None:
    try:
        await js.api(f"CONSUMER.RESET.{COMMANDS}.{name}", {"seq": start})
    except ApiError:
        # Its deliver policy does not let it be moved there.
        await js.delete_consumer(COMMANDS, name)
        await js.create_consumer(COMMANDS, {**placed_at(config, start), "pause_until": HELD_UNTIL})


async def pause(js: JetStream, name: str, until: str | None) -> None:
    """Pause a consumer until RFC 3339 time, or resume it."""
    await js.api(f"CONSUMER.PAUSE.{COMMANDS}.{name}", None if until is None else {"pause_until": until})
