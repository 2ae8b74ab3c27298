"""A hub that loses single messages for real."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.contract import H_MESSAGE_ID
from agent.server import permissions
from tests.harness.registrar import HubHand
from tests.harness.servers import ServerPair, open_server_pair
from tests.harness.streams import AGGREGATE


@asynccontextmanager
async def losing_world(
    directory: Path, monkeypatch: pytest.MonkeyPatch, *domains: str
) -> AsyncIterator[ServerPair]:
    """Servers whose registrar's key may also delete single messages, which the product's may not."""
    with monkeypatch.context() as rendered:
        verbs = (*permissions._STREAM_VERBS, "MSG.DELETE")
        rendered.setattr(permissions, "_STREAM_VERBS", verbs)
        async with open_server_pair(directory, *domains) as one:
            yield one


async def lose(hub: HubHand, *seqs: int) -> None:
    """Take messages out of the aggregate."""
    for seq in seqs:
        await hub.js.api(f"STREAM.MSG.DELETE.{AGGREGATE}", {"seq": seq})


async def held_ids(hub: HubHand) -> dict[int, str]:
    """The message ids that the aggregate holds, by sequence."""
    info = await hub.aggregate()
    found = {}
    for seq in range(info.first, info.last + 1):
        message = await hub.js.get_message(AGGREGATE, seq=seq)
        if message is not None:
            found[seq] = message.headers.get(H_MESSAGE_ID, "")
    return found
