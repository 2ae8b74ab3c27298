"""Scrapes exporters and stores their samples: the input `prometheus`.

Targets are independent. A refused or broken scrape loses its rest; scrapes never repeat. docs/inputs.md
describes the readings.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from agent import contract
from agent.base.clock import wall_ns
from agent.base.files import without_password
from agent.base.http.access import AccessError, is_loopback, read_token
from agent.base.logs import LogEdge
from agent.base.metrics import Metrics
from agent.base.wait import unless
from agent.leaf.inputs.prometheus import PrometheusOptions
from agent.leaf.inputs.prometheus.exposition import (
    ABOUT,
    Device,
    ExpositionError,
    ExpositionPart,
    SampleMapping,
    ScrapeError,
    labels_of,
    scrape,
    trust,
)
from agent.leaf.inputs.shared import NO_SERVER, ConfiguredInput, LocalServer, missing_extra
from agent.leaf.inputs.shared.samples import Names, SampleLine, SampleStore, check_interval, encode, turns
from agent.leaf.inputs.shared.value_memory import ValueMemory
from agent.leaf.intake import Chunk, Intake

if TYPE_CHECKING:
    import aiohttp

_MAX_URLS: Final = 64


class PrometheusInput(ConfiguredInput[PrometheusOptions]):
    _intake: Intake
    _stopping: asyncio.Event

    def __init__(self, options: PrometheusOptions, metrics: Metrics, server: LocalServer = NO_SERVER) -> None:
        super().__init__(options, metrics, server)
        self._invalid = metrics.invalid
        self._up = metrics.input_up.labels(options.name)
        self._store = SampleStore(options.name, options.class_, self._log)
        self._names = Names(options.keep, options.drop)
        self._failing = {url: LogEdge(self._log, f"{url} can be scraped again") for url in options.urls}
        self._down: set[str] = set()
        self._memory = ValueMemory(server.file("prometheus", f"{options.name}.values"), self._log)
        self._unread = set(options.urls)

    def _obstacles(self) -> Iterator[str]:
        # A target that does not answer yet is none.
        try:
            trust(self._options.tls_ca)
            if self._options.token_file is not None:
                read_token(self._options.token_file)
        except AccessError as error:
            yield str(error)

    def _mistakes(self) -> Iterator[str]:
        options = self._options
        yield from missing_extra("prometheus", "aiohttp")
        if not 1 <= len(options.urls) <= _MAX_URLS:
            yield f"urls names {len(options.urls)} targets; give 1 to {_MAX_URLS}"
        for url in options.urls:
            yield from _url_problems(url)
        if len(set(options.urls)) < len(options.urls):
            yield "urls names a target twice; name each once"
        else:
            yield from _same_targets(options.urls)
        if (problem := check_interval(options.interval)) is not None:
            yield problem
        if options.timeout > options.interval:
            yield f"timeout is {options.timeout} s, longer than interval, which is {options.interval} s"
        try:
            Device(options.device, "")
        except ValueError as error:
            yield f"device {options.device!r} cannot be used: {error}"

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Scrape until `stopping`. Raises `AccessError` for an unusable `tls_ca`."""
        self._intake, self._stopping = intake, stopping
        import aiohttp  # a tenth of what an agent without it needs

        self._memory.load()
        self._warn()
        context = await asyncio.to_thread(trust, self._options.tls_ca)
        connector = aiohttp.TCPConnector(ssl=True if context is None else context, limit_per_host=1)
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            asyncio.TaskGroup() as group,
        ):
            for url in self._options.urls:
                group.create_task(self._follow(url, session))

    def _warn(self) -> None:
        if self._options.token_file is None:
            return
        for url in self._options.urls:
            parts = urlsplit(url)
            if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
                self._log.warning("the token is sent in clear text; use https", url=url)

    async def _follow(self, url: str, session: aiohttp.ClientSession) -> None:
        async for _ in turns(self._options.interval, self._stopping):
            await self._sample(url, session)

    async def _sample(self, url: str, session: aiohttp.ClientSession) -> None:
        options = self._options
        device = Device(options.device, self._intake.domain)
        reading = SampleMapping(
            self._names, device, labels_of(url), self._intake.domain, wall_ns(), self._memory
        )
        began, count = time.monotonic(), 0
        try:
            exposition = await unless(self._stopping, scrape(session, url, options))
            if exposition is None:
                return
            took = time.monotonic() - began
            count = await self._take(reading.parts(*exposition))
        except (ScrapeError, ExpositionError) as error:
            took = time.monotonic() - began
            reason = error.reason if isinstance(error, ScrapeError) else "exposition"
            self._invalid.labels(self.name, reason).inc()
            self._failing[url].begin(f"{url} cannot be scraped: {error}")
            self._down.add(url)
        else:
            self._failing[url].end()
            self._down.discard(url)
            self._look_at_names(url)
        self._up.set(0 if self._down else 1)
        about = float(url not in self._down), took, float(count)
        await self._store.store(_about(reading, about), self._intake)

    def _look_at_names(self, url: str) -> None:
        """Log globs that matched no sample after a scrape of all targets."""
        if url not in self._unread:
            return
        self._unread.discard(url)
        keep, drop = self._names.unused()
        if not self._unread and (keep or drop):
            self._log.warning("globs match no sample", keep=keep, drop=drop)

    async def _take(self, parts: Iterator[ExpositionPart]) -> int:
        """Store parts in turn and return the samples; stops at a refusal."""
        count = 0
        while (part := await asyncio.to_thread(next, parts, None)) is not None:
            for reason, left_out in part.left_out.items():
                self._invalid.labels(self.name, reason).inc(left_out)
            count += part.count
            if part.count and not await self._store.store(Chunk(part.payload, part.count), self._intake):
                break
            self._memory.remember(part.values)
        return count


def _about(reading: SampleMapping, values: tuple[float, ...]) -> Chunk:
    device = reading.device.of(reading.labels)
    tags = {name: text for name, text in reading.labels.items() if name not in reading.device.labels}
    ts = contract.machine_time(reading.now_ns)
    lines = [SampleLine(ts, device, metric, value, tags) for metric, value in zip(ABOUT, values, strict=True)]
    return Chunk(encode(lines), len(lines))


def _same_targets(urls: Sequence[str]) -> Iterator[str]:
    """Yield targets with indistinguishable samples."""
    known: dict[tuple[tuple[str, str], ...], str] = {}
    for url in urls:
        with suppress(ValueError):  # another problem
            labels = labels_of(url)
            other = known.setdefault(tuple(labels.items()), url)
            if other is not url:
                both = f"{without_password(other)!r:.100} and {without_password(url)!r:.100}"
                yield (
                    f"{both} have the same labels {labels}; give one of them an input of its own, and a rule "
                    "that adds a tag"
                )


def _url_problems(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        yield f"{without_password(url)!r:.100} is not a target; write it as http://127.0.0.1:9100/metrics"
    elif parts.username is not None or parts.password is not None:
        yield f"the target {parts.hostname} has a password in its url; take token_file"
