"""Observes declared links, creates their streams, and makes safe repairs.

It never deletes a stream of sources, and a mirror only as `decide` allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog
from nats.aio.client import Client

from agent.base.metrics import Metrics
from agent.base.nats_server import merged
from agent.base.wait import event_within, loop_time
from agent.config import Config
from agent.config.mirrors import ORIGIN_METADATA, Declared, Key, ResolvedOrigin, declared, key_of
from agent.jetstream import JetStream, JetStreamError
from agent.jetstream.connection import EXPECTED, connected
from agent.jetstream.info import CopyStatus
from agent.mirrors.comparison import MirrorComparison
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
from agent.mirrors.observation import LocalStream, RemoteStream, StreamProbe
from agent.server.permissions import LinkRights, declared_link
from agent.server.setup import identities, link_rights

LOOK_SECONDS: Final = 5.0
FAULT_LOOK_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 1.0

log = structlog.get_logger("link")


class MirrorController:
    """Controls the links `copies` over an own connection to the local server."""

    def __init__(
        self,
        copies: Iterable[Declared],
        domain: str,
        identity: str,
        url: str,
        seed_file: Path,
        metrics: Metrics,
    ) -> None:
        self._copies = list(copies)
        self._identity, self._url, self._seed_file, self._metrics = identity, url, seed_file, metrics
        self._probe = StreamProbe(domain, identity)
        self._comparison = MirrorComparison(self._probe)
        self.jetstream: Callable[[Client], JetStream] = JetStream
        """Makes the API; in a hub cluster it changes nothing without the lead."""
        self._memories: dict[str, MirrorMemory] = {}
        self._missing_since: dict[str, float] = {}
        self._origins: dict[str, str] = {}
        self._rows: dict[str, dict[str, Any]] = {}
        for copy in self._copies:
            self._show_all(copy, MirrorVerdict(MirrorState.MAKING, "not checked yet"))

    def status(self) -> list[dict[str, Any]]:
        """Return each link's row for `/status`."""
        return list(self._rows.values())

    async def run(self) -> None:
        """Control the links until cancelled, with reconnects."""
        while True:
            try:
                async with connected(
                    self._url, self._seed_file, self._identity, self._probe.refused
                ) as connection:
                    while not connection.over.is_set() and not connection.nc.is_closed:
                        async with asyncio.TaskGroup() as group:
                            turns = [
                                group.create_task(self._reconcile(connection.nc, copy))
                                for copy in self._copies
                            ]
                        healthy = all(turn.result() for turn in turns)
                        await event_within(connection.over, LOOK_SECONDS if healthy else FAULT_LOOK_SECONDS)
            except EXPECTED as error:
                log.debug("declared links not observed", error=str(error))
            for copy in self._copies:
                self._show_all(copy, MirrorVerdict(MirrorState.AWAY, "the local NATS server does not answer"))
            await asyncio.sleep(RETRY_SECONDS)

    async def _reconcile(self, nc: Client, copy: Declared) -> bool:
        """Observe and repair one stream; returns whether all links flow."""
        js = self.jetstream(nc)
        now = loop_time()
        try:
            # The local side first: what arrives in between makes the origin look ahead of it, never behind.
            local = await self._probe.local(js, copy.name)
            async with asyncio.TaskGroup() as group:
                probes = {
                    origin.key: group.create_task(self._probe.remote(nc, origin)) for origin in copy.origins
                }
            remotes = {key: task.result() for key, task in probes.items()}
            first = remotes[copy.origins[0].key]
            if copy.kind == "mirror" and local is not None:
                local = await self._comparison.compare(nc, js, copy, local, first)
            if (action := decide_stream(copy, local, first, self._waited(copy, local, now))) is not None:
                await self._act(js, copy, local, first, action)
                local = await self._probe.local(js, copy.name)
            verdicts = [
                self._verdict(copy, origin, local, remotes[origin.key], now) for origin in copy.origins
            ]
            if local is not None:
                await self._nudge(js, copy, local, remotes, verdicts)
        except JetStreamError as error:
            self._show_all(
                copy,
                MirrorVerdict(MirrorState.REFUSED, f"the stream {copy.name} cannot be kept here: {error}"),
            )
            return False
        return all(verdict.state is MirrorState.FLOWING for verdict in verdicts)

    def _waited(self, copy: Declared, local: LocalStream | None, now: float) -> float:
        if local is not None:
            self._missing_since.pop(copy.name, None)
            return 0.0
        return now - self._missing_since.setdefault(copy.name, now)

    def _verdict(
        self,
        copy: Declared,
        origin: ResolvedOrigin,
        local: LocalStream | None,
        remote: RemoteStream,
        now: float,
    ) -> MirrorVerdict:
        link = copy.link(origin)
        memory = self._memories.get(link, MirrorMemory())
        verdict = decide_link(copy, origin, local, remote, memory, now)
        self._memories[link] = remember(memory, verdict, now)
        if verdict.up and remote.kind == "answers":
            self._origins[link] = remote.created
        entry = None if local is None else local.entries.get(origin.key)
        self._show(copy, origin, verdict, entry)
        return verdict

    async def _act(
        self,
        js: JetStream,
        copy: Declared,
        local: LocalStream | None,
        remote: RemoteStream,
        action: StreamAction,
    ) -> None:
        if action != "update":
            self._comparison.forget(copy.name)
        if action == "recreate":
            await js.api(f"STREAM.DELETE.{copy.name}")
        if local is None or action == "recreate":
            await js.api(f"STREAM.CREATE.{copy.name}", copy.made(remote.created))
        else:
            await js.update_stream(_updated(copy, local, remote))
        # What fails is tried at each look, and its reason is the link's sentence, which is logged once.
        log.warning("declared link", stream=copy.name, doing=action)

    async def _nudge(
        self,
        js: JetStream,
        copy: Declared,
        local: LocalStream,
        remotes: Mapping[Key, RemoteStream],
        verdicts: list[MirrorVerdict],
    ) -> None:
        """Readd due sources, so the server asks their origins at once; recreate an empty mirror too."""
        nudged = [origin for origin, verdict in zip(copy.origins, verdicts, strict=True) if verdict.nudge]
        if not nudged:
            return
        if copy.kind == "mirror":
            if local.last == 0:
                await self._act(js, copy, local, remotes[nudged[0].key], "recreate")
            return
        present = {key_of(entry): entry for entry in local.config.get("sources") or []}
        remaining = [present[origin.key] for origin in copy.origins if origin not in nudged]
        await js.update_stream({**local.config, **_sources(remaining)})
        entries = [
            self._entry(copy, origin, local, remotes[origin.key]) if origin in nudged else present[origin.key]
            for origin in copy.origins
        ]
        await js.update_stream({**local.config, **_sources(entries)})
        log.info("sources added again", stream=copy.name, sources=[copy.link(origin) for origin in nudged])

    def _entry(
        self, copy: Declared, origin: ResolvedOrigin, local: LocalStream, remote: RemoteStream
    ) -> dict[str, Any]:
        # The server resumes after the newest message that it finds of a source. If that was purged, only a
        # start position shows that it was here; that of another origin would skip what this one holds.
        same = self._origins.get(copy.link(origin)) == remote.created
        return origin.entry(local.entries[origin.key].seq if same else 0)

    def _show_all(self, copy: Declared, verdict: MirrorVerdict) -> None:
        for origin in copy.origins:
            self._show(copy, origin, verdict, None)

    def _show(
        self, copy: Declared, origin: ResolvedOrigin, verdict: MirrorVerdict, entry: CopyStatus | None
    ) -> None:
        link = copy.link(origin)
        before = self._rows.get(link)
        if before is not None and before["word"] != verdict.state.value:
            (log.info if verdict.up else log.warning)("link", link=link, state=verdict.sentence)
        self._metrics.show_link(link, up=verdict.up, lag=verdict.lag)
        self._rows[link] = {
            "link": link,
            "kind": copy.kind,
            "of": origin.place,
            "word": verdict.state.value,
            "state": verdict.sentence,
            "up": verdict.up,
            "lag": verdict.lag,
            "last": 0 if entry is None else entry.seq,
            "active": None if entry is None else entry.active,
        }


def make_controller(config: Config, metrics: Metrics) -> MirrorController:
    """Return the configured links' controller. Logs needed permissions of external servers."""
    copies = declared(config)
    if config.nats.server == "external":
        for permissions in required_permissions(copies, link_rights(config)):
            log.info("declared links need", permissions=permissions)
    seed_file = identities(config).account
    return MirrorController(copies, config.domain, config.identity, config.nats.url, seed_file, metrics)


def required_permissions(copies: Iterable[Declared], rights: Iterable[LinkRights]) -> list[str]:
    """Return the permissions that external servers need, a sentence for the user and each link."""
    own = f"the agent's user must be allowed to publish {', '.join(declared_link(rights))}"
    passages = [
        f"{copy.link(origin)}: to and from {origin.place} must pass {', '.join(needed_subjects(origin))}"
        for copy in copies
        for origin in copy.origins
        if origin.api
    ]
    return [own, *passages]


def _sources(entries: list[dict[str, Any]]) -> dict[str, Any]:
    # Without a source the server gives the stream its own name as subject, and a window of duplicates.
    return {"sources": entries, "subjects": [], "duplicate_window": 0} if entries else {"sources": []}


def _updated(copy: Declared, local: LocalStream, remote: RemoteStream) -> dict[str, Any]:
    """The configuration of a stream that is here, as it is declared."""
    config = merged(local.config, copy.stream())
    if copy.kind == "mirror":
        origin = local.origin_created or remote.created
        config["metadata"] = config["metadata"] | ({ORIGIN_METADATA: origin} if origin else {})
    else:
        present = {key_of(entry): entry for entry in local.config.get("sources") or []}
        config |= _sources([present.get(origin.key) or origin.entry() for origin in copy.origins])
    return config
