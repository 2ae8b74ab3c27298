"""Declared links under test: streams at both ends, and the agent's keeper of the links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nats.aio.client import Client

from agent import config as settings
from agent.base.metrics import Metrics
from agent.config import Config
from agent.config.mirrors import declared
from agent.jetstream import JetStream, JetStreamError
from agent.mirrors.controller import MirrorController
from agent.server.permissions import LinkRights
from agent.server.setup import link_rights
from tests.harness.servers import Node
from tests.harness.streams import stored_messages
from tests.harness.wait import SERVER_RETRY_SECONDS, until


class End:
    """One server's JetStream, seen by someone who may do everything there."""

    def __init__(self, nc: Client) -> None:
        self.nc = nc
        self.js = JetStream(nc)

    async def make(self, name: str, subjects: str) -> None:
        """A stream of one's own."""
        await self.js.ensure_stream({"name": name, "subjects": [subjects], "storage": "file"})

    async def store(self, subject: str, *texts: str) -> None:
        """Messages, in this order."""
        for text in texts:
            await self.js.publish(subject, text.encode())

    async def texts(self, stream: str) -> list[str]:
        """What a stream holds, in its order; nothing where there is none."""
        try:
            return [one.data.decode() for one in await stored_messages(self.js, stream)]
        except JetStreamError:
            return []

    async def subjects(self, stream: str) -> list[str]:
        """The subjects of what a stream holds, in its order."""
        return [one.subject for one in await stored_messages(self.js, stream)]

    async def holds(self, stream: str, texts: Iterable[str], seconds: float = SERVER_RETRY_SECONDS) -> None:
        """Return when a stream holds exactly this, in whatever order sources come."""
        wanted = sorted(texts)

        async def reached() -> bool:
            return sorted(await self.texts(stream)) == wanted

        await until(reached, f"{stream} holds {len(wanted)} messages, each once", seconds)


class Kept:
    """The keeper of the declared links of one agent, while it runs."""

    def __init__(self, links: MirrorController, metrics: Metrics) -> None:
        self.links = links
        self.metrics = metrics

    def row(self, link: str) -> dict[str, Any]:
        """The row of a link in `/status`."""
        return next(row for row in self.links.status() if row["link"] == link)

    async def is_in(
        self, link: str, *words: str, says: str = "", seconds: float = SERVER_RETRY_SECONDS
    ) -> str:
        """The sentence of a link, once it is in one of these states and `says` this."""

        def reached() -> bool:
            row = self.row(link)
            return row["word"] in words and says in row["state"]

        await until(reached, f"{link} is {words}: {self.row(link)}", seconds)
        return str(self.row(link)["state"])

    def value(self, name: str, link: str) -> float | None:
        """A metric of a link."""
        return self.metrics.registry.get_sample_value(name, {"link": link})


@asynccontextmanager
async def kept(config: Config, identity: str, url: str, seed_file: Path) -> AsyncIterator[Kept]:
    """The keeper of the links that a configuration declares."""
    metrics = Metrics()
    links = MirrorController(declared(config), config.domain, identity, url, seed_file, metrics)
    task = asyncio.create_task(links.run())
    try:
        yield Kept(links, metrics)
    finally:
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=30)
        assert done, "a keeper of declared links ends when it is cancelled"
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


def at(node: Node, config: Config) -> Any:
    """The keeper beside a rendered server, as the identity that the product gives it."""
    who = ("registrar", "registrar") if config.role == "hub" else ("agent", config.domain)
    return kept(config, who[1], node.url, node.keys[who[0]])


def rights(config: Config, *own: str) -> tuple[LinkRights, ...]:
    """What the rendered server allows the agent for its links, and for streams that a test makes there and
    reads."""
    return (*link_rights(config), *(LinkRights(name, (("$JS.API", name),)) for name in own))


def leaf_mirror(**options: Any) -> Config:
    """A leaf that mirrors the hub's PLANS."""
    return Config(domain="edge-1", mirror=[settings.MirrorConfig(**{"name": "PLANS", **options})])


def hub_source(*domains: str, **options: Any) -> Config:
    """A hub that gathers the stream LOCAL of each of these leaves."""
    origins = [settings.OriginConfig(of="LOCAL", domain=domain, **options) for domain in domains]
    return Config(domain="hub", role="hub", source=[settings.SourceConfig(name="ALL", from_=origins)])
