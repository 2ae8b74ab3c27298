"""What the permissions of a server pair let through that no test of an agent shows, and who is refused as a
client. All else that they refuse stands in `tests/security`."""

from __future__ import annotations

import asyncio
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from agent.contract import new_epoch
from tests.harness.servers import ServerPair, api
from tests.harness.streams import held, make_commands, make_mirror
from tests.harness.wait import WAIT_SECONDS

MESSAGES = 1500


async def test_commands_reach_the_mirror_of_the_leaf_and_are_read_there(servers: ServerPair) -> None:
    agent, registrar = await servers.leaf.connect("agent"), await servers.hub.connect("registrar")
    epoch = new_epoch()
    await make_commands(registrar, "edge-1", epoch)
    await make_mirror(agent, "edge-1", epoch)
    stream = registrar.jetstream(publish_async_max_pending=256)
    acks = [await stream.publish_async("cmd.edge-1.agent.note", b"x" * 3000) for _ in range(MESSAGES)]
    await asyncio.wait_for(asyncio.gather(*acks), WAIT_SECONDS)
    await held(agent, "COMMANDS", MESSAGES)
    first = await api(agent, "STREAM.MSG.GET.COMMANDS", {"next_by_subj": "cmd.edge-1.>", "seq": 1})
    assert first["message"]["subject"] == "cmd.edge-1.agent.note"
    await api(agent, "STREAM.DELETE.COMMANDS")
    assert not servers.leaf.errors + servers.hub.errors


@pytest.mark.parametrize("side", ["hub", "leaf"])
async def test_who_has_no_key_or_the_key_of_a_link_is_refused_as_a_client(
    servers: ServerPair, side: str
) -> None:
    node = servers.hub if side == "hub" else servers.leaf
    link = str(servers.leaf.config.link_key_file)
    strangers: tuple[dict[str, Any], ...] = ({}, {"user": "acc", "password": "acc"}, {"nkeys_seed": link})
    for options in strangers:
        client = Client()
        try:
            with pytest.raises(nats.errors.Error, match=r"(?i)authorization violation"):
                await client.connect(node.url, allow_reconnect=False, **options)
        finally:
            await client.close()
