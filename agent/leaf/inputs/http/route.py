"""Defines a protocol of the HTTP input as a route: its bodies, their readings and its answers. The handler
does the common work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from msgspec import Struct, field

from agent.base.http.framing import HttpRequest
from agent.base.http.response import Response
from agent.contract import Letter
from agent.leaf.inputs.http.bodies import Body, Hold
from agent.leaf.inputs.http.limits import MAX_ARRAY_BYTES, BodyLimits, line_limits
from agent.leaf.inputs.http.request import KEY, RequestHead, check_method, request_key, waits
from agent.leaf.inputs.http.responses import HttpError, at_fault
from agent.mapping.schema import Map

_JSON: Final = "application/json"
_PLAIN: Final = "identity"


class RouteSettings(Struct, frozen=True):
    """Settings of all routes of one input."""

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
    mapping: Map | None = None
    """The mapping of bodies at the path of readings and below."""


class DecodedBody(Struct):
    """The readings of a body: NDJSON of `count` lines."""

    payload: bytes
    count: int
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How much of the body is not a reading, by kind; the rest is stored."""
    is_dated: bool = True
    """Whether each reading has a time of its own: only then the same body is the same request."""
    letters: tuple[Letter, ...] = ()
    """Dead letters with `odd` members, stored after the readings."""
    odd: int = 0
    no_value: int = 0
    """Members of mapped payloads without a value."""


_Decoded = TypeVar("_Decoded", bound=DecodedBody)


class Route(ABC, Generic[_Decoded]):
    """One protocol of one input."""

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
    """The label of `petiole_invalid_requests` for omitted parts, None if the answer is an error."""

    def __init__(self, settings: RouteSettings) -> None:
        self._settings = settings

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

    def limits(self, *, is_json: bool) -> BodyLimits:
        """Return the limits of a body."""
        return line_limits(self._settings.body)

    def time_unit(self, request: HttpRequest) -> int:
        """The nanoseconds of one step of the times in the body. Raises `HttpError`."""
        return 1

    def decode_at_once(self, body: bytes, head: RequestHead) -> _Decoded | None:
        """Return the readings of a plain and correct body that takes few milliseconds, else None: `decode`
        follows. Raises nothing. Brings 20 to 40 % more requests a CPU-second.
        """
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


def read_head(request: HttpRequest, route: Route[Any]) -> RequestHead:
    """The head of a request to a route. Raises `HttpError`."""
    check_method(request, "POST readings", "POST")
    headers = request.headers
    is_json = route.is_json(headers.get("content-type", ""))
    encoding = headers.get("content-encoding", _PLAIN)
    if encoding not in route.encodings:
        names = " or ".join(", ".join(route.encodings).replace(_PLAIN, "none").rsplit(", ", 1))
        raise at_fault(415, "encoding", f"Content-Encoding must be {names}")
    limits = route.limits(is_json=is_json)
    head = RequestHead(
        target=request.target,
        is_json=is_json,
        encoding=None if encoding == _PLAIN else encoding,
        key=request_key(request) if KEY in headers else None,
        limits=limits,
        waits=waits(headers.get("expect")),
        size_hint=route.size_hint if limits.body == MAX_ARRAY_BYTES else "",
        time_unit=route.time_unit(request),
    )
    if request.length is None and not request.chunked:
        raise at_fault(411, "length", "send Content-Length or Transfer-Encoding: chunked")
    if request.length is not None and request.length > limits.body:
        raise head.too_large()
    return head
