"""Answers HTTP questions about the agent; changes nothing.

- `/metrics`: all metrics, text or OpenMetrics by `Accept`.
- `/healthz`: 200 while the agent answers; a permanent failure ends the process.
- `/readyz`: 200 when the agent can work, else 503 with the reason.
- `/status`: the agent's state as JSON.
- `/fleet` at the hub: pages of its leaves, see `agent.hub.web`. `/` leads there, or lists paths.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from agent.base.http.access import AccessError, Hosts, is_loopback, read_token, shows, tls_context
from agent.base.http.framing import HttpRequest
from agent.base.http.large_answers import Shared, blocks_of
from agent.base.http.response import Response
from agent.base.http.server import TEXT, QuestionServer
from agent.base.listen_sockets import cannot_listen, obstacle
from agent.base.metrics import Metrics
from agent.base.supervisor import ConditionError
from agent.config import Admin, listen_address

if TYPE_CHECKING:
    from agent.hub.web import FleetPages

MAX_CONNECTIONS: Final = 32
SECONDS: Final = 10.0
"""Connection timeout, for one request."""
_METRICS: Final = "/metrics"
_STATUS: Final = "/status"
_OUTER: Final = 2
"""Levels of the status written by entry."""
_SAMPLES: Final = 100
"""Samples written at once."""
_FORMATS: Final = 4
"""Shared formats of `/metrics`; bounded, since `Accept` is arbitrary."""
_OPEN: Final = "/healthz"
"""The path without token, which reveals nothing."""
_ASKING: Final = {"WWW-Authenticate": 'Basic realm="petiole", charset="UTF-8"'}
"""Makes browsers ask for the token."""
_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

log = structlog.get_logger("admin")


class AdminServer:
    """Serves `metrics`, `status()`, `ready()` and a hub's `fleet`. `address` has the real port."""

    def __init__(
        self,
        settings: Admin,
        metrics: Metrics,
        status: Callable[[], Mapping[str, Any]],
        ready: Callable[[], tuple[bool, str]],
        fleet: FleetPages | None = None,
    ) -> None:
        self.address = listen_address(settings.listen)
        self._settings, self._fleet = settings, fleet
        self._token: bytes | None = None
        self._metrics, self._status, self._ready = metrics, status, ready
        self._shown = Shared(self._write_status)
        self._scraped: dict[str, Shared[list[bytes]]] = {}
        self._hosts = Hosts(self.address[0])
        self._pages: dict[str, Callable[[HttpRequest], Response]] = {
            "/healthz": self._show_health,
            "/readyz": self._show_readiness,
        }

    def obstacles(self) -> list[str]:
        """Return why it can't listen, a sentence each."""
        found = obstacle(self.address)
        problems = [] if found is None else [f"admin.listen: {found}"]
        for read in (self._read_token, self._tls):
            try:
                read()
            except AccessError as error:
                problems.append(f"admin: {error}")
        return problems

    def _read_token(self) -> bytes | None:
        path = self._settings.token_file
        return None if path is None else read_token(path)

    def _tls(self) -> ssl.SSLContext | None:
        tls = self._settings.tls
        return None if tls is None else tls_context(*tls)

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until `stopping`. Raises `ConditionError` for the address, `AccessError` for a file."""
        self._token, tls = self._read_token(), self._tls()
        if self._token is not None and tls is None and not is_loopback(self.address[0]):
            log.warning("the token is sent in clear text; set [admin] tls_cert and tls_key")
        server = QuestionServer(self.address, self._answer, limit=MAX_CONNECTIONS, seconds=SECONDS, tls=tls)
        try:
            port = await server.open()
        except OSError as error:
            raise ConditionError(f"admin.listen: {cannot_listen(self.address, error)}") from None
        self.address = (self.address[0], port)
        try:
            await stopping.wait()
        finally:
            await server.close()

    async def _answer(self, request: HttpRequest) -> Response:
        page = self._pages.get(request.path)
        if not self._knows(request):
            response = _sentence(401, "show the token, as Bearer or as the password of Basic", _ASKING)
        elif self._token is None and not self._hosts.admit(request.headers.get("host")):
            response = _sentence(421, "this server does not go by the name in Host; use its address")
        elif request.method != "GET":
            response = _sentence(405, "only GET is answered", {"Allow": "GET"})
        elif page is not None:
            response = page(request)
        elif request.path == _METRICS:
            response = await self._show_metrics(request)
        elif request.path == _STATUS:
            response = await self._show_status()
        else:
            response = await self._show_fleet(request) or self._show_pages(request)
        return response.also(_HEADERS)

    def _knows(self, request: HttpRequest) -> bool:
        """Tell whether a request may be answered. With a token any `Host` is valid, as foreign pages
        lack it.
        """
        given = request.headers.get("authorization")
        return self._token is None or request.path == _OPEN or shows(given, self._token)

    async def _show_fleet(self, request: HttpRequest) -> Response | None:
        return None if self._fleet is None else await self._fleet.answer(request.path, request.query())

    @property
    def paths(self) -> list[str]:
        """Return all paths."""
        fleet = () if self._fleet is None else self._fleet.paths
        return [_METRICS, *self._pages, _STATUS, *fleet]

    def _show_pages(self, request: HttpRequest) -> Response:
        there = ", ".join(self.paths)
        if request.path != "/":
            return _sentence(404, f"there is no such page; there are {there}")
        if self._fleet is None:
            return _sentence(200, f"Petiole's agent on this machine; there are {there}")
        return _sentence(303, f"see {self._fleet.paths[0]}", {"Location": self._fleet.paths[0]})

    async def _show_metrics(self, request: HttpRequest) -> Response:
        encode, content_type = _encoder(request.headers.get("accept", ""))

        async def write() -> list[bytes]:
            # Read at once, while nothing changes; written out as the loop has time for it.
            return await blocks_of(_exposition(encode, list(self._metrics.registry.collect())))

        if content_type not in self._scraped and len(self._scraped) == _FORMATS:
            blocks = await write()
        else:
            blocks = await self._scraped.setdefault(content_type, Shared(write)).get()
        return Response(200, content_type=content_type, blocks=blocks)

    def _show_health(self, _request: HttpRequest) -> Response:
        return _sentence(200, "the agent runs")

    def _show_readiness(self, _request: HttpRequest) -> Response:
        ready, sentence = self._ready()
        return _sentence(200 if ready else 503, sentence)

    async def _show_status(self) -> Response:
        return Response(200, content_type="application/json", blocks=await self._shown.get())

    async def _write_status(self) -> list[bytes]:
        # As for the metrics: what is known is read at once.
        return await blocks_of(_written(dict(self._status())))


def _written(value: Any) -> Iterator[bytes]:
    """Yield indented JSON by outer entry."""
    yield from _entry(value, 0)
    yield b"\n"


def _entry(value: Any, depth: int) -> Iterator[bytes]:
    indent = b"\n" + b"  " * depth
    if isinstance(value, Mapping) and not value:
        # Of any class: the fleet of a hub that has no leaf yet is none that msgspec knows.
        yield b"{}"
        return
    if not isinstance(value, Mapping) or depth > _OUTER:
        yield msgspec.json.format(msgspec.json.encode(value), indent=2).replace(b"\n", indent)
        return
    for number, (key, entry) in enumerate(value.items()):
        yield b"%s%s  %s: " % (b"," if number else b"{", indent, msgspec.json.encode(key))
        yield from _entry(entry, depth + 1)
    yield indent + b"}"


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """Return the metrics encoder by `Accept`, and its type."""
    with contextlib.suppress(TypeError):  # of a version that is not a number
        if accept.isascii():
            return choose_encoder(accept)
    return choose_encoder("")


def _exposition(encode: Callable[[Collector], bytes], families: Iterable[Metric]) -> Iterator[bytes]:
    """Yield metrics in portions."""
    end = encode(_Collected([]))
    for family in families:
        # Of the other types samples belong together.
        size = _SAMPLES if family.type in ("gauge", "counter") else None
        samples, head = iter(family.samples), b""
        while True:
            part = copy(family)
            part.samples = list(islice(samples, size))
            yield encode(_Collected([part])).removesuffix(end).removeprefix(head)
            if size is None or len(part.samples) < size:
                break
            part.samples = []
            head = encode(_Collected([part])).removesuffix(end)
    yield end


class _Collected(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _sentence(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(status, f"{text}\n".encode(), TEXT, headers)
