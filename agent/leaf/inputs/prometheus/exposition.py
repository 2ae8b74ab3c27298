"""Fetches an exporter's exposition within limits and converts it by the official parser to NDJSON."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import math
import re
import ssl
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec
from msgspec import Struct, field

from agent import contract
from agent.base.files import open_regular, without_password
from agent.base.http.access import AccessError, read_token
from agent.base.tls import client_context
from agent.base.wait import timeout
from agent.leaf.inputs.formats import split_valid
from agent.leaf.inputs.prometheus import PrometheusOptions
from agent.leaf.inputs.shared.samples import Names, SampleLine, encode
from agent.leaf.inputs.shared.value_memory import ValueMemory, value_of

if TYPE_CHECKING:
    import aiohttp

_CHUNK: Final = 64 * 1024
ACCEPT: Final = "text/plain;version=0.0.4;q=0.8,application/openmetrics-text;version=1.0.0;q=0.5"
"""OpenMetrics adds `_total` to counters that the text format may lack."""
_READINGS: Final = 1_000
"""Readings made at once."""
_OPEN: Final = "application/openmetrics-text"
ABOUT: Final = ("up", "scrape_duration_seconds", "scrape_samples")
"""Own readings per scrape."""
_DEFAULT_PATH: Final = "/metrics"
_COUNTER: Final = re.compile(rb"(\s*#\s*TYPE\s.*\s)counter\s*\Z")


def labels_of(url: str) -> dict[str, str]:
    """Return the labels of a target: `instance` (query `target`, or host and port), `module`, and a path. No
    passwords.
    """
    parts = urlsplit(url)
    asked = dict(parse_qsl(parts.query))
    labels = {"instance": without_password(asked.get("target", parts.netloc))}
    if parts.path not in ("", "/", _DEFAULT_PATH):
        labels["metrics_path"] = parts.path
    if "module" in asked:
        labels["module"] = asked["module"]
    return labels


async def scrape(session: aiohttp.ClientSession, url: str, options: PrometheusOptions) -> tuple[bytes, str]:
    """Return body and content type. Raises `ScrapeError`.

    Requests an unpacked body, whose size is known, and follows no redirects, which could leak the token.
    """
    import aiohttp

    headers = {"Accept": ACCEPT, "Accept-Encoding": "identity"}
    try:
        if options.token_file is not None:
            token = await asyncio.to_thread(read_token, options.token_file)
            headers["Authorization"] = f"Bearer {token.decode()}"
        async with (
            timeout(options.timeout),
            session.get(url, headers=headers, allow_redirects=False) as answer,
        ):
            if answer.status != 200:
                raise ScrapeError("status", f"it answers {answer.status}, not 200")
            if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise ScrapeError("encoding", "it answers with a packed body, which was not asked for")
            body = bytearray()
            async for chunk in answer.content.iter_chunked(_CHUNK):
                body += chunk
                if len(body) > options.body:
                    text = f"it has more than {options.body} bytes; make body larger, or expose less"
                    raise ScrapeError("too_large", text)
            return bytes(body), answer.headers.get("Content-Type", "")
    except AccessError as error:
        raise ScrapeError("token", str(error)) from None
    except TimeoutError:
        raise ScrapeError("timeout", f"it has not answered within {options.timeout:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ScrapeError("unreachable", f"{type(error).__name__}: {error!s:.200}") from None


class ScrapeError(Exception):
    """A scrape failed; the text has the reason, `reason` is one word."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def trust(ca: Path | None) -> ssl.SSLContext | None:
    """Return the TLS context for a CA file or the system's. Raises `AccessError`."""
    if ca is None:
        return None
    try:
        open_regular(ca).close()
        return client_context(ca)
    except (OSError, ValueError) as error:
        raise AccessError(f"tls_ca {ca} holds no certificates in PEM that can be read ({error})") from None


class ExpositionError(ValueError):
    """Not an exposition; the text has the reason."""


class SampleMapping(Struct, frozen=True):
    """Maps samples to readings: wanted names, device, default `labels`, and the scrape time (ns since 1970).

    Repeated samples with own time found in `memory` are left out.
    """

    names: Names
    device: Device
    labels: Mapping[str, str]
    domain: str
    now_ns: int
    memory: ValueMemory

    def parts(self, body: bytes, content_type: str) -> Iterator[ExpositionPart]:
        """Yield parts of some milliseconds. Raises `ExpositionError` after the valid part."""
        fault: ExpositionError | None = None
        lines: list[SampleLine] = []
        part = ExpositionPart()
        ts = contract.machine_time(self.now_ns)
        samples = _samples(body, content_type)
        while True:
            try:
                sample = next(samples, None)
            except ExpositionError as error:
                fault, sample = error, None
            if sample is None:
                break
            if not self.names.wants(sample.name):
                continue
            if not math.isfinite(sample.value):
                part.left_out["nan" if math.isnan(sample.value) else "infinite"] += 1
                continue
            labels = {**self.labels, **sample.labels}
            tags = {name: text for name, text in labels.items() if name not in self.device.labels}
            name = (
                f"exported_{sample.name}" if sample.name in ABOUT and labels == self.labels else sample.name
            )
            at = ts if sample.timestamp is None else float(sample.timestamp)
            if sample.timestamp is not None and self._is_repeated(sample, labels, part.values):
                continue
            lines.append(SampleLine(at, self.device.of(labels), name, float(sample.value), tags))
            if len(lines) >= _READINGS:
                yield self._finished(part, lines)
                part, lines = ExpositionPart(), []
        yield self._finished(part, lines)
        if fault is not None:
            raise fault

    def _is_repeated(self, sample: Any, labels: Mapping[str, str], values: dict[bytes, bytes]) -> bool:
        """Tell whether a sample with own time is stored or being stored, and note it in `values`."""
        series = msgspec.json.encode([sample.name, sorted(labels.items())])
        value = value_of(series, repr((float(sample.timestamp), float(sample.value))).encode())
        if values.get(value.source) == value.content or self.memory.is_known(value):
            return True
        values[value.source] = value.content
        return False

    def _finished(self, part: ExpositionPart, lines: list[SampleLine]) -> ExpositionPart:
        parsed = split_valid(encode(lines), self.domain, self.now_ns)
        if parsed.bad:
            part.left_out["bad_sample"] += len(parsed.bad)
        part.payload, part.count = parsed.payload, parsed.count
        return part


class ExpositionPart(Struct):
    """NDJSON of `count` readings, and left-out samples by reason."""

    payload: bytes = b""
    count: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    values: dict[bytes, bytes] = field(default_factory=dict)
    """Digests of samples with own time."""


class Device:
    """Fills a device template such as `{rack}-{slot}`, or `fallback` when a label is missing. Raises
    `ValueError`.
    """

    def __init__(self, template: str | None, fallback: str) -> None:
        parts = list(Formatter().parse(template)) if template else []
        if any(spec or conversion or name == "" for _, name, spec, conversion in parts):
            raise ValueError("a label stands in braces by its name alone, as in {instance}")
        self._parts = [(text, name) for text, name, _, _ in parts]
        self.labels: Final = frozenset(name for _, name in self._parts if name)
        """Labels it uses, which are no tags."""
        self._fallback = fallback

    def of(self, labels: Mapping[str, str]) -> str:
        if not self._parts or not all(map(labels.get, self.labels)):
            return self._fallback
        return "".join(text + (labels[name] if name else "") for text, name in self._parts)


class _Lines:
    """Feeds lines to the parser and tracks the last one. Counters become gauges, since the parser would add
    `_total`.
    """

    def __init__(self, body: bytes, *, is_open: bool) -> None:
        self._lines, self._is_open = io.BytesIO(body), is_open
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.number += 1
            if not self._is_open and (match := _COUNTER.match(line)) is not None:
                line = match[1] + b"gauge\n"
            yield line.decode()


def _samples(body: bytes, content_type: str) -> Iterator[Any]:
    """Yield samples in order. Raises `ExpositionError` at the first bad line."""
    is_open = content_type.partition(";")[0].strip().lower() == _OPEN
    lines, count = _Lines(body, is_open=is_open), 0
    try:
        for sample in _parsed(lines, is_open):
            yield sample
            count += 1
    except ExpositionError as error:
        # The parser holds samples back until their family ends.
        before = b"".join(itertools.islice(io.BytesIO(body), max(0, lines.number - 1))) + b"# EOF\n"
        with contextlib.suppress(ExpositionError):
            yield from itertools.islice(_parsed(_Lines(before, is_open=is_open), is_open), count, None)
        raise ExpositionError(f"line {lines.number}: {error}") from None


def _parsed(lines: _Lines, is_open: bool) -> Iterator[Any]:
    # Imported here, so that an agent that scrapes nothing does not hold the parsers in memory.
    from prometheus_client import parser
    from prometheus_client.openmetrics import parser as openmetrics

    read: Any = openmetrics if is_open else parser
    families = iter(read.text_fd_to_metric_families(lines))
    while True:
        try:
            family = next(families, None)
        except Exception as error:  # whatever the parser stumbles over, what came is at fault
            raise ExpositionError(f"{type(error).__name__}: {error!s:.200}") from None
        if family is None:
            return
        yield from family.samples
