"""Gets what an exporter exposes over HTTP, within limits, and makes NDJSON of it that may be stored; the
official parser reads it."""

from __future__ import annotations

import asyncio
import io
import math
import ssl
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from agent import contract
from agent.base.files import open_regular
from agent.base.http.access import AccessError, read_token
from agent.base.wait import timeout
from agent.leaf.inputs.formats import split_valid
from agent.leaf.inputs.prometheus import PrometheusOptions
from agent.leaf.inputs.shared.samples import Names, SampleLine, encode

if TYPE_CHECKING:
    import aiohttp

_CHUNK: Final = 64 * 1024
ACCEPT: Final = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5"
_READINGS: Final = 1_000
"""How many readings are made at a time."""
_OPEN: Final = "application/openmetrics-text"


async def scrape(session: aiohttp.ClientSession, url: str, options: PrometheusOptions) -> tuple[bytes, str]:
    """The body and its content type. Raises `ScrapeError`. It asks for a plain body, for the size of a
    packed one is unknown, and follows no redirection, which might take the token elsewhere."""
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
    """A target did not give an exposition; the text says why, `reason` is one word."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def trust(ca: Path | None) -> ssl.SSLContext | None:
    """Whose certificates are believed: those of the file, or the system's. Raises `AccessError`."""
    if ca is None:
        return None
    try:
        open_regular(ca).close()
        return ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        raise AccessError(f"tls_ca {ca} holds no certificates in PEM that can be read ({error})") from None


class ExpositionError(ValueError):
    """What came is no exposition; the text says why."""


class SampleMapping(Struct, frozen=True):
    """How samples become readings: the names that are wanted, the device, `labels` for samples that have
    none of that name themselves, and the instant of the scrape (ns since 1970)."""

    names: Names
    device: Device
    labels: Mapping[str, str]
    domain: str
    now_ns: int

    def parts(self, body: bytes, content_type: str) -> Iterator[ExpositionPart]:
        """Read an exposition bit by bit: each step takes some milliseconds. Raises `ExpositionError` where it
        is none; what stands before that place has been returned by then."""
        lines: list[SampleLine] = []
        part = ExpositionPart()
        ts = contract.machine_time(self.now_ns)
        for sample in _samples(body, content_type):
            if not self.names.wants(sample.name):
                continue
            if not math.isfinite(sample.value):
                part.left_out["nan" if math.isnan(sample.value) else "infinite"] += 1
                continue
            labels = {**self.labels, **sample.labels}
            tags = {name: text for name, text in labels.items() if name not in self.device.labels}
            at = ts if sample.timestamp is None else float(sample.timestamp)
            lines.append(SampleLine(at, self.device.of(labels), sample.name, float(sample.value), tags))
            if len(lines) >= _READINGS:
                yield self._finished(part, lines)
                part, lines = ExpositionPart(), []
        yield self._finished(part, lines)

    def _finished(self, part: ExpositionPart, lines: list[SampleLine]) -> ExpositionPart:
        parsed = split_valid(encode(lines), self.domain, self.now_ns)
        if parsed.bad:
            part.left_out["bad_sample"] += len(parsed.bad)
        part.payload, part.count = parsed.payload, parsed.count
        return part


class ExpositionPart(Struct):
    """Some readings of an exposition: NDJSON of `count`, and how many samples were left out, by reason."""

    payload: bytes = b""
    count: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


class Device:
    """The device of a sample by a template such as `{instance}` or `{rack}-{slot}`; where a label that it
    names is missing or empty, it is `fallback`. Raises `ValueError` for a template that cannot be used."""

    def __init__(self, template: str | None, fallback: str) -> None:
        parts = list(Formatter().parse(template)) if template else []
        if any(spec or conversion or name == "" for _, name, spec, conversion in parts):
            raise ValueError("a label stands in braces by its name alone, as in {instance}")
        self._parts = [(text, name) for text, name, _, _ in parts]
        self.labels: Final = frozenset(name for _, name in self._parts if name)
        """What it takes from a sample; none of these is a tag."""
        self._fallback = fallback

    def of(self, labels: Mapping[str, str]) -> str:
        """The device of a sample with these labels."""
        if not self._parts or not all(map(labels.get, self.labels)):
            return self._fallback
        return "".join(text + (labels[name] if name else "") for text, name in self._parts)


def _samples(body: bytes, content_type: str) -> Iterator[Any]:
    # Imported here, so that an agent that scrapes nothing does not hold the parsers in memory.
    from prometheus_client import parser
    from prometheus_client.openmetrics import parser as openmetrics

    text = io.TextIOWrapper(io.BytesIO(body), "utf-8", newline="\n")
    read = openmetrics if content_type.partition(";")[0].strip().lower() == _OPEN else parser
    families = iter(read.text_fd_to_metric_families(text))
    while True:
        try:
            family = next(families, None)
        except Exception as error:  # whatever the parser stumbles over, what came is at fault
            raise ExpositionError(f"{type(error).__name__}: {error!s:.200}") from None
        if family is None:
            return
        yield from family.samples
