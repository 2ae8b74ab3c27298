"""What the registrar can see of servers that are set up wrong, and says in one sentence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.contract import deliver_subject, link_consumer, new_epoch
from agent.server import link_permissions
from agent.server.permissions import Permissions
from tests.harness.registrar import LeafHand, hub_of
from tests.harness.servers import ServerPair, open_server_pair
from tests.harness.wait import until

WINDOW = 50


@asynccontextmanager
async def world_without(
    directory: Path, monkeypatch: pytest.MonkeyPatch, missing: Callable[[str], bool]
) -> AsyncIterator[ServerPair]:
    """Servers whose hub lacks some permissions of the link."""
    whole = link_permissions.leaf_link

    def lacking(*leaf: Any, **more: Any) -> Permissions:
        allowed = whole(*leaf, **more)
        return replace(
            allowed,
            publish=tuple(one for one in allowed.publish if not missing(one)),
            subscribe=tuple(one for one in allowed.subscribe if not missing(one)),
        )

    monkeypatch.setattr(link_permissions, "leaf_link", lacking)
    async with open_server_pair(directory, "edge-1") as servers:
        yield servers


async def narrow(leaf: LeafHand) -> None:
    """A link consumer that waits for acknowledgements after few messages."""
    leaf.epoch = new_epoch()
    name = link_consumer(leaf.epoch)
    await leaf.js.create_consumer(
        leaf.stream,
        {
            "name": name,
            "durable_name": name,
            "deliver_policy": "all",
            "ack_policy": "flow_control",
            "max_ack_pending": WINDOW,
            "deliver_subject": deliver_subject(leaf.domain, "normal", leaf.epoch),
        },
    )


async def test_a_link_without_its_reset_answers_is_said_to_lack_a_permission_and_is_never_flowing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world_without(tmp_path, monkeypatch, lambda subject: subject == "$JSC.R.*") as servers:
        hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
        async with hub.registrar() as registrar:
            await leaf.store(3)
            await leaf.announce()

            def said() -> bool:
                return "lacks a permission of the link" in registrar.status()["leaves"][leaf.domain]["state"]

            await until(said, "the missing permission is said")
            answer = await leaf.announce()
            assert (answer.state, answer.cursor) == ("linking", 0)


async def test_a_link_without_flow_control_is_said_to_lack_it_and_is_not_called_flowing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world_without(tmp_path, monkeypatch, lambda one: one.startswith("$JS.FC.TEL")) as servers:
        hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
        await narrow(leaf)
        async with hub.registrar() as registrar:
            await leaf.announce()
            await leaf.store(2 * WINDOW)
            await hub.holds(leaf.domain, WINDOW)

            def said() -> bool:
                return "permission for $JS.FC" in registrar.status()["leaves"][leaf.domain]["state"]

            await until(said, "the missing permission is said")
            assert (await leaf.announce(confirmed=WINDOW)).state == "linking"


async def test_on_a_hub_server_that_is_too_old_no_leaf_is_taken_in(servers: ServerPair) -> None:
    hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
    async with hub.registrar(version="2.14.6") as registrar:
        words = await leaf.refused((await leaf.announcement()).encode())
        assert "the hub's server is nats-server 2.14.6" in words
        assert "take 2.15.1" in words
        assert words.removeprefix("no leaf is taken in: ") in registrar.status()["state"]
