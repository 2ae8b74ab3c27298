"""Where a client may be and which domain it may mean: the four places in which each row of the client
document is shown."""

from __future__ import annotations

import itertools
from typing import Any

from nats.aio.client import Client
from nats.js import JetStreamContext

from agent.contract import api_prefix
from agent.jetstream import JetStream
from agent.jetstream.programs import Consumer
from tests.harness.seed_servers import SIDES

PLACES = [(side, domain) for side in SIDES for domain in SIDES]
IDS = [f"{domain}-from-{side}" for side, domain in PLACES]
PREFIXES = {"MINE.API": "$JS.API"} | {f"MINE.{domain}.API": f"$JS.{domain}.API" for domain in SIDES}
"""Prefixes of one's own, which the account maps. The server maps a subject once, and maps a domain's prefix
itself where that domain is, so that "MINE.hub.API" leads nowhere at the hub."""
_numbers = itertools.count(1)


def new_name() -> str:
    """A name that nothing else has, in any domain."""
    return f"N{next(_numbers)}"


class Place:
    """A client at one of the servers, and the JetStream of a domain as it reaches it: `js` by nats-py, `raw`
    by our own layer."""

    def __init__(self, nc: Client, side: str, domain: str) -> None:
        self.nc, self.side, self.domain = nc, side, domain
        self.prefix = api_prefix(domain)
        self.own_prefix = "MINE.API" if side == domain else f"MINE.{domain}.API"
        self.js: JetStreamContext = nc.jetstream(domain=domain)
        self.raw = JetStream(nc, self.prefix)

    async def stream(self, messages: int = 0, **config: Any) -> str:
        """A new stream, which takes the subjects below its name; the `messages` in it are numbered from 1, in
        subject and payload."""
        name = new_name()
        await self.raw.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], **config})
        for number in range(1, messages + 1):
            await self.raw.publish(f"{name}.{number}", b"%d" % number)
        return name

    async def consumer(self, stream: str, **config: Any) -> Consumer:
        """A new pull consumer."""
        name = new_name()
        settings = {"name": name, "durable_name": name, "ack_policy": "explicit", **config}
        await self.raw.create_consumer(stream, settings)
        return Consumer(stream, name, self.prefix)
