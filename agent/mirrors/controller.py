"""The keeper of the declared links: looks at each, says how it is, makes its stream and repairs what is safe
to repair. Imported only where a link is declared. It never deletes a stream of sources, and a mirror only as
`decide` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog
from nats.aio.client import Client

from agent.base.metrics import Metrics
from agent.base.wait import event_within, loop_time
from agent.config import Config
from agent.config.mirrors import ORIGIN_METADATA, Declared, Key, ResolvedOrigin, declared, key_of
from agent.jetstream import JetStream, JetStreamError, merged
from agent.jetstream.connection import EXPECTED, connected
from agent.mirrors.decide import (
    MirrorMemory,
    MirrorState,
    MirrorVerdict,
    StreamAction,
    decide_link,
    decide_stream,
    needed_subjects,
    remember,
)
from agent.mirrors.observation import CopyStatus, LocalStream, RemoteStream
from agent.mirrors.probe import StreamProbe
from agent.server.permissions import LinkRights, declared_link
from agent.server.setup import identities, link_rights

LOOK_SECONDS: Final = 5.0
UNWELL_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 1.0

log = structlog.get_logger("link")


class MirrorController:
    """Keeps `links` over a connection of its own to the local server."""

    def __init__(
        self,
        links: Iterable[Declared],
        domain: str,
        identity: str,
        url: str,
        seed_file: Path,
        metrics: Metrics,
    ) -> None:
        self._links = list(links)
        self._identity, self._url, self._seed_file, self._metrics = identity, url, seed_file, metrics
        self._asker = StreamProbe(domain, identity)
        self._memories: dict[str, MirrorMemory] = {}
        self._missing_since: dict[str, float] = {}
        self._origins: dict[str, str] = {}
        self._rows: dict[str, dict[str, Any]] = {}
        for one in self._links:
            self._show_all(one, MirrorVerdict(MirrorState.MAKING, "not looked at yet"))

    def status(self) -> list[dict[str, Any]]:
        """Each link as a row of `/status`."""
        return list(self._rows.values())

    async def run(self) -> None:
        """Keep the links until cancelled, over one connection after the other."""
        while True:
            try:
                async with connected(self._url, self._seed_file, self._identity, self._asker.refused) as link:
                    while not link.over.is_set() and not link.nc.is_closed:
                        async with asyncio.TaskGroup() as group:
                            turns = [group.create_task(self._turn(link.nc, one)) for one in self._links]
                        well = all(turn.result() for turn in turns)
                        await event_within(link.over, LOOK_SECONDS if well else UNWELL_SECONDS)
            except EXPECTED as error:
                log.debug("the declared links cannot be looked at", error=str(error))
            for one in self._links:
                self._show_all(one, MirrorVerdict(MirrorState.AWAY, "the local NATS server does not answer"))
            await asyncio.sleep(RETRY_SECONDS)

    async def _turn(self, nc: Client, one: Declared) -> bool:
        """Look at one stream and its links, and do what is due. Returns whether all is well."""
        js = JetStream(nc)
        now = loop_time()
        try:
            # This side first: what comes in between makes the origin look ahead of it, never behind.
            here = await self._asker.here(js, one.name)
            async with asyncio.TaskGroup() as group:
                asked = {o.key: group.create_task(self._asker.origin(nc, o)) for o in one.origins}
            theres = {key: task.result() for key, task in asked.items()}
            first = theres[one.origins[0].key]
            if (action := decide_stream(one, here, first, self._waited(one, here, now))) is not None:
                await self._act(js, one, here, first, action)
                here = await self._asker.here(js, one.name)
            verdicts = [self._judge(one, origin, here, theres[origin.key], now) for origin in one.origins]
            if here is not None:
                await self._nudge(js, one, here, theres, verdicts)
        except JetStreamError as error:
            self._show_all(
                one, MirrorVerdict(MirrorState.REFUSED, f"the stream {one.name} cannot be kept here: {error}")
            )
            return False
        return all(one.state is MirrorState.FLOWING for one in verdicts)

    def _waited(self, one: Declared, here: LocalStream | None, now: float) -> float:
        if here is not None:
            self._missing_since.pop(one.name, None)
            return 0.0
        return now - self._missing_since.setdefault(one.name, now)

    def _judge(
        self, one: Declared, origin: ResolvedOrigin, here: LocalStream | None, there: RemoteStream, now: float
    ) -> MirrorVerdict:
        link = one.link(origin)
        memory = self._memories.get(link, MirrorMemory())
        verdict = decide_link(one, origin, here, there, memory, now)
        self._memories[link] = remember(memory, verdict, now)
        if verdict.up and there.kind == "answers":
            self._origins[link] = there.created
        entry = None if here is None else here.entries.get(origin.key)
        self._show(one, origin, verdict, entry)
        return verdict

    async def _act(
        self,
        js: JetStream,
        one: Declared,
        here: LocalStream | None,
        there: RemoteStream,
        action: StreamAction,
    ) -> None:
        log.warning("declared link", stream=one.name, doing=action)
        if action == "recreate":
            await js.api(f"STREAM.DELETE.{one.name}")
        if here is None or action == "recreate":
            await js.api(f"STREAM.CREATE.{one.name}", one.made(there.created))
            return
        config = merged(here.config, one.stream())
        if one.kind == "mirror":
            origin = here.origin_created or there.created
            config["metadata"] = config["metadata"] | ({ORIGIN_METADATA: origin} if origin else {})
        else:
            have = {key_of(entry): entry for entry in here.config.get("sources") or []}
            config |= _sources([have.get(origin.key) or origin.entry() for origin in one.origins])
        await js.update_stream(config)

    async def _nudge(
        self,
        js: JetStream,
        one: Declared,
        here: LocalStream,
        theres: Mapping[Key, RemoteStream],
        verdicts: list[MirrorVerdict],
    ) -> None:
        """Remove the sources that are due and add them again, so that the server asks their origins at once;
        for the same end make a mirror anew that holds nothing yet."""
        again = [o for o, verdict in zip(one.origins, verdicts, strict=True) if verdict.nudge]
        if not again:
            return
        if one.kind == "mirror":
            if here.last == 0:
                await self._act(js, one, here, theres[again[0].key], "recreate")
            return
        have = {key_of(entry): entry for entry in here.config.get("sources") or []}
        kept = [have[origin.key] for origin in one.origins if origin not in again]
        await js.update_stream({**here.config, **_sources(kept)})
        entries = [
            self._again(one, o, here, theres[o.key]) if o in again else have[o.key] for o in one.origins
        ]
        await js.update_stream({**here.config, **_sources(entries)})
        log.info("sources added again", stream=one.name, sources=[one.link(origin) for origin in again])

    def _again(
        self, one: Declared, origin: ResolvedOrigin, here: LocalStream, there: RemoteStream
    ) -> dict[str, Any]:
        # The server goes on after the newest message that it finds of a source. Where that was purged, only a
        # start says that it was here already; one of another origin would skip what this one holds.
        same = self._origins.get(one.link(origin)) == there.created
        return origin.entry(here.entries[origin.key].seq if same else 0)

    def _show_all(self, one: Declared, verdict: MirrorVerdict) -> None:
        for origin in one.origins:
            self._show(one, origin, verdict, None)

    def _show(
        self, one: Declared, origin: ResolvedOrigin, verdict: MirrorVerdict, entry: CopyStatus | None
    ) -> None:
        link = one.link(origin)
        before = self._rows.get(link)
        if before is not None and before["word"] != verdict.state.value:
            (log.info if verdict.up else log.warning)("link", link=link, state=verdict.sentence)
        self._metrics.show_link(link, up=verdict.up, lag=verdict.lag)
        self._rows[link] = {
            "link": link,
            "kind": one.kind,
            "of": origin.place,
            "word": verdict.state.value,
            "state": verdict.sentence,
            "up": verdict.up,
            "lag": verdict.lag,
            "last": 0 if entry is None else entry.seq,
            "active": None if entry is None else entry.active,
        }


def make_controller(config: Config, identity: str, metrics: Metrics) -> MirrorController:
    """The controller of the links that a configuration declares. Logs which permissions a server needs that
    the agent does not render."""
    links = declared(config)
    if config.nats.server == "external":
        for permissions in required_permissions(links, link_rights(config)):
            log.info("declared links need", permissions=permissions)
    url, seed_file = f"nats://{config.nats.listen}", identities(config).account
    return MirrorController(links, config.domain, identity, url, seed_file, metrics)


def required_permissions(links: Iterable[Declared], rights: Iterable[LinkRights]) -> list[str]:
    """What servers that are not rendered here must allow, one sentence for the agent's user and one for each
    link."""
    own = f"the agent's user must be allowed to publish {', '.join(declared_link(rights))}"
    passages = [
        f"{link.link(origin)}: to and from {origin.place} must pass {', '.join(needed_subjects(origin))}"
        for link in links
        for origin in link.origins
        if origin.api
    ]
    return [own, *passages]


def _sources(entries: list[dict[str, Any]]) -> dict[str, Any]:
    # Without a source the server gives the stream its own name as subject, and a window of duplicates.
    return {"sources": entries, "subjects": [], "duplicate_window": 0} if entries else {"sources": []}
