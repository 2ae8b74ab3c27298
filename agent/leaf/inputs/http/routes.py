"""The protocols that the HTTP input speaks, by path. A route knows one of them: what its bodies may be, what
readings they hold, and how it answers. The handler does what all have in common.

To add a protocol derive `Route` and add its paths to `ROUTES`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct, field

from agent import contract
from agent.base.clock import wall_ns
from agent.base.http.framing import HttpRequest
from agent.base.http.response import Response
from agent.base.wait import Pacer
from agent.leaf.inputs.formats.ndjson import (
    MAX_ARRAY_BYTES,
    BadLinesError,
    BodyTooLargeError,
    Decoded,
    decode_array_slices,
    decode_slice,
    decode_slices,
    join_decoded,
)
from agent.leaf.inputs.http.request import READINGS_PATH, Body, Hold, RequestHead, dense
from agent.leaf.inputs.http.responses import HttpError, at_fault, bad_lines

OTLP_PATH: Final = "/v1/metrics"
OTLP_LOGS_PATH: Final = "/v1/logs"
REMOTE_WRITE_PATH: Final = "/api/v1/write"
QUERY_PATH: Final = "/query"
_JSON: Final = "application/json"
_EMPTY: Final = 'the body holds no reading; send at least one, such as {"metric": "pressure", "value": 21.5}'


class RouteSettings(Struct, frozen=True):
    """What the routes of one input share."""

    domain: str
    body: int
    """The largest body in bytes, as it comes and unpacked."""
    device_tag: str
    """The tag of line protocol that is the device."""
    otlp: bool
    """Whether exports of OpenTelemetry are taken."""
    success: Response
    """The answer to readings that have reached the level of the input."""
    remote_write: bool = False
    """Whether Prometheus remote write is taken."""
    remote_write_device: str | None = None
    """A template of labels for the device of its samples."""


class DecodedBody(Struct):
    """The readings of a body: NDJSON of `count` lines."""

    payload: bytes
    count: int
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How much of the body is not a reading, by kind; the rest is stored."""
    is_dated: bool = True
    """Whether each reading has a time of its own: only then the same body is the same request."""


_Decoded = TypeVar("_Decoded", bound=DecodedBody)


class Route(ABC, Generic[_Decoded]):
    """One protocol of one input. `room` bounds the readings of a body in bytes."""

    media_type: ClassVar[str | None] = None
    """The `Content-Type` that is taken besides JSON; None takes any and never JSON."""
    encodings: ClassVar[tuple[str, ...]] = ("gzip", "zstd", "identity")
    """The `Content-Encoding`s that are taken; `identity` is a plain body."""
    is_repeat_by_body: ClassVar[bool] = False
    """Whether the same body is the same request where no `Idempotency-Key` came, if all that it holds says of
    which series and time it is (`DecodedBody.is_dated`)."""
    size_hint: ClassVar[str] = ""
    """What the answer 413 adds for a body above `MAX_ARRAY_BYTES`."""
    left_out_fault: ClassVar[str | None] = None
    """The label under which `petiole_invalid_requests` counts what was left out, None for a protocol that
    answers an error then."""

    def __init__(self, settings: RouteSettings) -> None:
        self._settings = settings
        self.room = settings.body

    def is_json(self, content_type: str) -> bool:
        """Whether a body of this `Content-Type` is JSON. Raises `HttpError` for one that is not taken."""
        if self.media_type is None:
            return False
        kind, _, parameters = content_type.partition(";")
        kind = kind.strip().lower()
        if kind not in (self.media_type, _JSON):
            raise at_fault(415, "content_type", f"Content-Type must be {self.media_type} or {_JSON}")
        if parameters and "charset" in parameters and "utf-8" not in parameters.lower():
            raise at_fault(415, "content_type", "the charset must be utf-8")
        return kind == _JSON

    def limit(self, *, is_json: bool) -> int:
        """The largest body in bytes, as it comes and unpacked."""
        return self._settings.body

    def time_unit(self, request: HttpRequest) -> int:
        """The nanoseconds of one step of the times in the body. Raises `HttpError`."""
        return 1

    def decode_at_once(self, body: bytes, head: RequestHead) -> _Decoded | None:
        """The readings of a body that came plain, if they are found within few milliseconds and nothing is
        wrong with them; None where `decode` has to find them. Raises nothing."""
        return None

    @abstractmethod
    async def decode(self, body: Body, head: RequestHead, hold: Hold) -> _Decoded:
        """The readings of a body. Gives way to the rest of the agent every few milliseconds. Raises
        `HttpError` when none can be stored."""

    def respond(self, decoded: _Decoded, head: RequestHead) -> Response:
        """The answer once the readings are stored. Raises `HttpError` when others were left out."""
        return self._settings.success

    def translate(self, error: HttpError, request: HttpRequest) -> HttpError:
        """An error in the form that the clients of this protocol read."""
        return error


class AdmittedRequest(NamedTuple):
    """A request whose head is in order: its body may come."""

    request: HttpRequest
    head: RequestHead
    route: Route[Any]


class ReadingsRoute(Route[DecodedBody]):
    """Readings as they are stored: NDJSON, a JSON array, or one JSON object."""

    media_type = contract.NDJSON
    size_hint = f"; a JSON array may not be larger, {contract.NDJSON} may"

    def __init__(self, settings: RouteSettings) -> None:
        super().__init__(settings)
        self.room = max(settings.body, contract.MAX_UNPACKED_BYTES)

    def limit(self, *, is_json: bool) -> int:
        return min(self._settings.body, MAX_ARRAY_BYTES) if is_json else self._settings.body

    def decode_at_once(self, body: bytes, head: RequestHead) -> DecodedBody | None:
        decoded = None if head.is_json else decode_slice(body, self._settings.domain, wall_ns())
        return DecodedBody(decoded.payload, decoded.count) if decoded is not None and decoded.count else None

    async def decode(self, body: Body, head: RequestHead, hold: Hold) -> DecodedBody:
        domain = self._settings.domain
        try:
            if head.is_json:
                if not body.data.strip():
                    raise at_fault(400, "empty", _EMPTY, unread=False)
                slices = decode_array_slices(body.data, domain, wall_ns())
            else:
                slices = decode_slices(body.data, domain, wall_ns(), body.room)
            decoded = await _join(slices)
        except BadLinesError as error:
            raise bad_lines(error) from None
        except BodyTooLargeError:
            raise dense("its readings have") from None
        if not decoded.count:
            raise at_fault(400, "empty", _EMPTY, unread=False)
        return DecodedBody(decoded.payload, decoded.count)


async def _join(slices: Iterator[Decoded]) -> Decoded:
    parts: list[Decoded] = []
    pacer = Pacer()
    for part in slices:
        if part.count:
            parts.append(part)
        await pacer.give_way()
    return join_decoded(parts)


# Imported late, so that an agent to which nothing speaks these protocols does not hold them in memory.
def _influx_route(settings: RouteSettings) -> Route[Any]:
    from agent.leaf.inputs.http.influx import InfluxRoute

    return InfluxRoute(settings)


def _influx_query_route(settings: RouteSettings) -> Route[Any]:
    from agent.leaf.inputs.http.influx import QueryRoute

    return QueryRoute(settings)


def _otlp_route(settings: RouteSettings) -> Route[Any]:
    from agent.leaf.inputs.http.otlp import OtlpRoute

    return OtlpRoute(settings)


def _otlp_logs_route(settings: RouteSettings) -> Route[Any]:
    from agent.leaf.inputs.http.otlp import OtlpLogsRoute

    return OtlpLogsRoute(settings)


def _remote_write_route(settings: RouteSettings) -> Route[Any]:
    from agent.leaf.inputs.http.remote_write import RemoteWriteRoute

    return RemoteWriteRoute(settings)


ROUTES: Final[Mapping[str, Callable[[RouteSettings], Route[Any]]]] = {
    READINGS_PATH: ReadingsRoute,
    "/write": _influx_route,
    "/api/v2/write": _influx_route,
    QUERY_PATH: _influx_query_route,
    OTLP_PATH: _otlp_route,
    OTLP_LOGS_PATH: _otlp_logs_route,
    REMOTE_WRITE_PATH: _remote_write_route,
}
"""By the paths to which readings are posted, and the questions of InfluxDB's clients."""
OPTIONS: Final = {OTLP_PATH: "otlp", OTLP_LOGS_PATH: "otlp", REMOTE_WRITE_PATH: "remote_write"}
"""The option that a path needs."""


class Routes:
    """The routes of one input. Each is made for its first request and kept, for it may remember names."""

    def __init__(self, settings: RouteSettings) -> None:
        self._settings = settings
        self._made: dict[Callable[[RouteSettings], Route[Any]], Route[Any]] = {}

    def find(self, path: str) -> Route[Any] | None:
        """The route of a path, None where there is none."""
        make = ROUTES.get(path)
        if make is None or (path in OPTIONS and not getattr(self._settings, OPTIONS[path])):
            return None
        route = self._made.get(make)
        if route is None:
            route = self._made[make] = make(self._settings)
        return route


Reply = Callable[[Response, bool], None]
"""Sends the answer to the request under way; with True the connection closes: what follows is not read."""


class Service(Protocol):
    """What requests are for."""

    @property
    def is_stopping(self) -> bool:
        """Whether the input stops."""

    def hold(self) -> Hold:
        """What counts the bytes of a connection's bodies."""

    def known(self, head: bytes) -> AdmittedRequest | None:
        """The request of a head that was admitted before, None where it has to be read."""

    def admit(self, request: HttpRequest, head: bytes) -> AdmittedRequest | Response:
        """Let a request in, whose body may then come, or answer it. Raises `HttpError`."""

    def begin(self) -> None:
        """The body of an admitted request comes; `end` follows."""

    def take(self, admitted: AdmittedRequest, body: bytes, hold: Hold, reply: Reply) -> None:
        """Take in the body of an admitted request; `reply` is called once, now or later."""

    def end(self) -> None:
        """An admitted request is answered, or its body does not come."""

    def refusal(self, error: HttpError, request: HttpRequest | None) -> Response:
        """Count an error; the answer that says it."""


def not_found(path: str) -> HttpError:
    """The refusal of a path that no route serves, and what to do."""
    if path in OPTIONS:
        return at_fault(404, "path", f"{path} is not served here (option {OPTIONS[path]})")
    return at_fault(404, "path", f"there is nothing at this path: readings go to POST {READINGS_PATH}")
