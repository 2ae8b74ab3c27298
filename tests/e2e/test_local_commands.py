"""Programs beside the agent read their own commands from the leaf's mirror, linked or not, and no others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.client import JetStreamContext

from agent.config import Size, StreamClass
from agent.contract import COMMANDS, Command, parse_command
from agent.jetstream import JetStreamError
from tests.harness.agents import agent, leaf_config
from tests.harness.commands import Desk, open_desk
from tests.harness.servers import ServerPair, ask
from tests.harness.wait import until

APP = "plc"
FILTER = "cmd.edge-1.plc.>"


@pytest_asyncio.fixture
async def desk(servers: ServerPair, tmp_path: Path) -> AsyncIterator[Desk]:
    """A leaf whose server lets the program `plc` read its commands, with its agent and the mirror."""
    leaf = servers.leaf
    await leaf.start_with(apps=(APP, "robot"))
    await leaf.wait_linked()
    config = leaf_config(leaf, tmp_path / "agent", stream=StreamClass(max_bytes=Size(2**28)))
    async with open_desk(servers) as one, agent(config):
        for n in range(3):
            await one.put("move", Command(f"m-{n}", {"by": n}).encode(), app=APP)
            await one.put("grip", Command(f"g-{n}").encode(), app="robot")
            await one.put("ping", Command(f"p-{n}").encode())
        await one.answers(3)
        await until(lambda: _holds(one, 9), "the mirror holds all")
        yield one


async def test_a_program_reads_its_commands_once_and_in_order_while_the_link_is_down(desk: Desk) -> None:
    leaf = desk.servers.leaf
    leaf.proxy.cut()
    await leaf.wait_linked(False)
    device = await leaf.connect("device")
    commands = await _subscribed(device)
    moves = []
    for message in await commands.fetch(3, timeout=30):
        moves.append(parse_command(message.data).args["by"])
        await message.ack_sync()
    assert moves == [0, 1, 2]
    await device.close()
    await desk.put("move", Command("m-3", {"by": 3}).encode(), app=APP)
    leaf.proxy.restore()
    commands = await _subscribed(await leaf.connect("device"))
    (message,) = await commands.fetch(1, timeout=30)
    assert parse_command(message.data).id == "m-3"


REFUSED = (
    "$JS.API.CONSUMER.CREATE.COMMANDS.plc.cmd.edge-1.agent.>",
    "$JS.API.CONSUMER.CREATE.COMMANDS.plc.cmd.edge-1.*.>",
    "$JS.API.CONSUMER.CREATE.COMMANDS.plc.cmd.edge-1.>",
    "$JS.API.CONSUMER.CREATE.COMMANDS.plc",
    "$JS.API.CONSUMER.CREATE.COMMANDS",
    "$JS.API.CONSUMER.DURABLE.CREATE.COMMANDS.plc",
    "$JS.API.CONSUMER.CREATE.COMMANDS.other.cmd.edge-1.plc.>",
    "$JS.API.CONSUMER.DELETE.COMMANDS.plc",
    "$JS.API.CONSUMER.MSG.NEXT.COMMANDS.other",
    "$JS.API.STREAM.DELETE.COMMANDS",
    "$JS.API.STREAM.PURGE.COMMANDS",
    "$JS.API.STREAM.INFO.COMMANDS",
    "$JS.API.STREAM.MSG.GET.COMMANDS",
    "$JS.API.STREAM.MSG.DELETE.COMMANDS",
    "$JS.API.DIRECT.GET.COMMANDS",
    "$JS.ACK.COMMANDS.other.1.1.1.1.0",
    "cmd.edge-1.agent.ping",
    "cmd.edge-1.plc.move",
)
ELSE: tuple[dict[str, Any], ...] = (
    {"filter_subject": "cmd.edge-1.agent.>"},
    {"filter_subjects": ["cmd.edge-1.agent.>", FILTER]},
    {"filter_subject": ""},
    {"filter_subject": FILTER, "name": "robot", "durable_name": "robot"},
)


async def test_a_program_may_do_nothing_else_to_commands(desk: Desk) -> None:
    leaf = desk.servers.leaf
    device = await leaf.connect("device")
    for subject in REFUSED:
        await device.publish(subject, b"{}")
    await device.flush()
    await until(lambda: len(leaf.errors) >= len(REFUSED), "every one of them is refused")
    refused = " ".join(str(error).lower() for error in leaf.errors)
    assert [subject for subject in REFUSED if f'publish to "{subject.lower()}"' not in refused] == []
    subject = f"$JS.API.CONSUMER.CREATE.{COMMANDS}.{APP}.{FILTER}"
    for config in ELSE:
        given = {"name": APP, "durable_name": APP, "ack_policy": "explicit", **config}
        answer = await ask(device, subject, {"stream_name": COMMANDS, "config": given})
        assert "error" in answer, answer


async def _subscribed(device: Client) -> JetStreamContext.PullSubscription:
    js = device.jetstream(timeout=5)
    config = ConsumerConfig(name=APP, durable_name=APP, filter_subject=FILTER, ack_policy=AckPolicy.EXPLICIT)
    await js.add_consumer(COMMANDS, config)
    return await js.pull_subscribe_bind(APP, stream=COMMANDS)


async def _holds(desk: Desk, seq: int) -> bool:
    try:
        return (await desk.leaf.js.stream_info(COMMANDS)).last >= seq
    except JetStreamError:
        return False
