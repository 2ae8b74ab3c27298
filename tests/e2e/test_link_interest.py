"""What a link carries of what the hub does with other leaves: nothing."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nkeys

from agent.contract import DEFAULT_CLASS, new_epoch
from agent.hub.registrar.aggregate import AggregateSettings, aggregate_config, source
from tests.harness.servers import Leaf, ServerPair, api
from tests.harness.streams import AGGREGATE
from tests.harness.wait import WAIT_SECONDS


@asynccontextmanager
async def joined(port: int, leaf: Leaf) -> AsyncIterator[asyncio.StreamReader]:
    """A link with the key of a leaf whose server is down; it answers nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    nonce = json.loads((await reader.readline())[4:])["nonce"]
    pair = nkeys.from_seed(leaf.config.link_key_file.read_bytes().strip())
    signed = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
    said = {"nkey": pair.public_key.decode(), "sig": signed, "name": leaf.domain, "server_id": leaf.domain}
    writer.write(f"CONNECT {json.dumps(said | {'headers': True, 'protocol': 1})}\r\nPING\r\n".encode())
    while not (line := await reader.readline()).startswith(b"PONG"):
        assert line.startswith((b"INFO", b"LS+", b"PING")), line
    yield reader
    writer.transport.abort()


async def test_what_the_hub_asks_one_leaf_crosses_no_other_link(two_leaves: ServerPair) -> None:
    one, other = two_leaves.leaves.values()
    for leaf in (one, other):
        await leaf.kill()
    registrar = await two_leaves.hub.connect("registrar")
    sources = [source(leaf.domain, DEFAULT_CLASS, new_epoch()) for leaf in (one, other)]
    config, heard = aggregate_config(AGGREGATE, AggregateSettings(64 << 20), sources), list[str]()
    async with asyncio.timeout(WAIT_SECONDS), joined(two_leaves.hub.leaf_port, one) as link:
        await api(registrar, f"STREAM.CREATE.{AGGREGATE}", config)
        # Both are asked at once, and no longer after some seconds without an answer.
        while not any(line.startswith("LS- $JSC.R.") for line in heard):
            heard.append((await link.readuntil()).decode())
    (asked,) = [line for line in heard if line.startswith("LS+ $JSC.R.")]
    assert asked.startswith(f"LS+ $JSC.R.{one.domain}.")
