"""A request: who may send it, what its line and headers say, and its body, unpacked within bounds: of each
body, and of all bodies together. A body of a few kilobytes may unpack to gigabytes. No I/O.

A page in a browser on this machine must not reach the input, neither by name (DNS rebinding) nor across
sites: `Guard` checks `Host`, `Origin` and the token."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import zstandard

from agent import contract
from agent.base.http.access import Hosts, shows
from agent.base.http.framing import HttpRequest
from agent.base.wait import Pacer
from agent.leaf.inputs.formats.ndjson import MAX_ARRAY_BYTES
from agent.leaf.inputs.http.responses import HttpError, at_fault, refused
from agent.leaf.intake import RefusalReason, RefusedError

if TYPE_CHECKING:
    from agent.leaf.inputs.http.routes import Route

READINGS_PATH: Final = "/v1/readings"
KEY: Final = "idempotency-key"
_PLAIN: Final = "identity"


class Guard:
    """Admits requests to one listener by its names, the origins that may post, and its token."""

    def __init__(
        self,
        listen_host: str,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        token: bytes | None = None,
    ) -> None:
        self._hosts = Hosts(listen_host, hosts)
        self._origins = frozenset(origins)
        self._token = token

    def admit(self, headers: Mapping[str, str], *, open_path: bool, shown: str | None = None) -> None:
        """Raises `HttpError` for a request that may not come in; an open path needs no token. `shown` is what
        its URL shows as one."""
        if not self._hosts.admit(headers.get("host")):
            raise at_fault(421, "host", "this Host is not served here (option allowed_hosts)")
        origin = headers.get("origin")  # programs send none
        if origin is not None and origin not in self._origins:
            raise at_fault(403, "origin", "this Origin may not post (option allowed_origins)")
        authorization = headers.get("authorization")
        if authorization is None and shown is not None:
            authorization = f"Token {shown}"
        if open_path or self._token is None or shows(authorization, self._token):
            return
        raise at_fault(
            401,
            "token",
            "send the token of this input: Authorization: Bearer …",
            WWW_Authenticate='Bearer realm="petiole"',
        )


class RequestHead(NamedTuple):
    """The head of a request with a body."""

    target: str
    """Path and query."""
    is_json: bool
    encoding: str | None
    """None for a plain body."""
    key: str | None
    """The `Idempotency-Key`."""
    limit: int
    """Bytes of the body at most, as it comes and unpacked."""
    waits: bool = False
    """Whether the sender waits for 100 before it sends the body."""
    size_hint: str = ""
    """What 413 adds."""
    time_unit: int = 1
    """Nanoseconds of one step of the times in the body."""

    def too_large(self, *, unread: bool = True) -> HttpError:
        """413 for this request."""
        return at_fault(
            413, "too_large", f"the body is above {self.limit} bytes{self.size_hint}", unread=unread
        )


def check_method(request: HttpRequest, remedy: str, *methods: str) -> None:
    """Raises `HttpError` 405 for a method that is none of these."""
    if request.method not in methods:
        allow = ", ".join(methods)
        raise at_fault(405, "method", f"{request.method:.16} is not possible here: {remedy}", Allow=allow)


def read_head(request: HttpRequest, route: Route[Any]) -> RequestHead:
    """The head of a request to a route. Raises `HttpError`."""
    check_method(request, "POST readings", "POST")
    headers = request.headers
    is_json = route.is_json(headers.get("content-type", ""))
    encoding = headers.get("content-encoding", _PLAIN)
    if encoding not in route.encodings:
        names = " or ".join(", ".join(route.encodings).replace(_PLAIN, "none").rsplit(", ", 1))
        raise at_fault(415, "encoding", f"Content-Encoding must be {names}")
    limit = route.limit(is_json=is_json)
    head = RequestHead(
        target=request.target,
        is_json=is_json,
        encoding=None if encoding == _PLAIN else encoding,
        key=_key(request) if KEY in headers else None,
        limit=limit,
        waits=_waits(headers.get("expect")),
        size_hint=route.size_hint if limit == MAX_ARRAY_BYTES else "",
        time_unit=route.time_unit(request),
    )
    if request.length is None and not request.chunked:
        raise at_fault(411, "length", "send Content-Length or Transfer-Encoding: chunked")
    if request.length is not None and request.length > limit:
        raise head.too_large()
    return head


def _key(request: HttpRequest) -> str:
    if KEY in request.repeated:
        raise at_fault(400, "key", "there is more than one Idempotency-Key")
    try:
        return contract.check_request_key(request.headers[KEY])
    except contract.ContractError as error:
        raise at_fault(400, "key", str(error)) from None


def body_key(body: bytes) -> str:
    """The key of a request that is known by its body."""
    return blake2b(body, digest_size=16).hexdigest()


def _waits(expect: str | None) -> bool:
    """Whether the sender waits for 100 before it sends the body (RFC 9110, 10.1.1)."""
    if expect is None:
        return False
    if expect.lower() != "100-continue":
        raise at_fault(417, "expect", "Expect must be 100-continue or absent")
    return True


_GZIP: Final = 16 + zlib.MAX_WBITS
_GZIP_STEP: Final = 64 * 1024
"""Bytes fed to gzip at a time."""
_GZIP_PART: Final = 2**20
"""Bytes that are unpacked from them at a time."""
_ZSTD_STEP: Final = 256
"""Bytes fed to zstd at a time. A block of four bytes may hold 128 KiB, so a step yields at most 8 MiB."""
_ZSTD_WINDOW: Final = 8 * 2**20
"""What every decoder must support (RFC 8878, 3.1.1.1.2); a larger one is memory at the sender's choice."""
MAX_RATIO: Final = 200
"""What a body may unpack to, and what its readings may be, in bytes for each that came: readings that are
alike pack to a hundredth at zstd level 3, and to a hundred-and-fiftieth at level 19."""
LEAST: Final = 2**20
"""Bytes that any body may unpack to."""
_MAX_FRAMES: Final = 4096
"""An empty frame of zstd is nine bytes, and costs as much as one of a kilobyte."""


class Body(NamedTuple):
    """A body as its sender meant it, and how many bytes its readings may have."""

    data: bytes
    room: int


class Bodies:
    """All bodies under way; `held` of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class Hold:
    """The bytes that the request under way of one connection holds of the common bound; given back by
    `release`."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._bytes = 0

    def add(self, count: int, *, unread: bool) -> None:
        """Hold `count` bytes more; raises `HttpError` 503 when all are in use."""
        if self._bodies.held + count > self._bodies.limit:
            full = RefusedError(RefusalReason.BUSY, "too many bodies are under way", 1.0)
            raise refused(full, unread=unread)
        self._bodies.held += count
        self._bytes += count

    def give_back(self, count: int) -> None:
        """Hold `count` bytes less."""
        self._bodies.held -= count
        self._bytes -= count

    def release(self) -> None:
        """Give all of it back."""
        self._bodies.held -= self._bytes
        self._bytes = 0


def dense(subject: str) -> HttpError:
    """413 for a small body of which too much would be made."""
    text = (
        f"{subject} more than {MAX_RATIO} times the bytes that came, and more than {LEAST} bytes; send fewer "
    )
    return at_fault(413, "too_large", f"{text}readings at a time", unread=False)


async def unpacked(body: bytes, head: RequestHead, hold: Hold, room: int) -> Body:
    """A body as its sender meant it; its readings may have `room` bytes. Raises `HttpError`."""
    allowed = allowance(len(body), room)
    if head.encoding is None:
        return Body(body, allowed)
    limit = allowance(len(body), head.limit)
    parts, pacer = [], Pacer()
    try:
        for part in unpack_parts(body, head.encoding, limit):
            hold.add(len(part), unread=False)
            parts.append(part)
            await pacer.give_way()
    except UnpackedTooLargeError:
        if limit == head.limit:
            raise head.too_large(unread=False) from None
        raise dense("the body unpacks to") from None
    except ValueError as error:
        raise at_fault(400, "encoding", str(error), unread=False) from None
    return Body(b"".join(parts), allowed)


def allowance(received: int, limit: int) -> int:
    """How many bytes may be made of so many that came, at most `limit`."""
    return min(limit, max(LEAST, MAX_RATIO * received))


class UnpackedTooLargeError(ValueError):
    """The body holds more than its bound."""


def unpack(body: bytes, encoding: str, limit: int) -> bytes:
    """A body of `Content-Encoding` gzip (one member), zstd (some frames) or snappy (a block) unpacked. Raises
    `UnpackedTooLargeError` above `limit` bytes, `ValueError` for a body that is damaged or cut off."""
    return b"".join(unpack_parts(body, encoding, limit))


def unpack_parts(body: bytes, encoding: str, limit: int) -> Iterator[bytes]:
    """The same in parts of a few milliseconds; snappy has no parts, and takes one for each megabyte."""
    try:
        if encoding == "snappy":
            from agent.leaf.inputs.http.remote_write.wire import unsnap  # needs the extra `remote-write`

            yield unsnap(body, limit)
        else:
            yield from _gunzip(body, limit) if encoding == "gzip" else _unzstd(body, limit)
    except (zlib.error, zstandard.ZstdError) as error:
        raise ValueError(f"the body is not {encoding}: {error}") from None


def _gunzip(body: bytes, limit: int) -> Iterator[bytes]:
    member = zlib.decompressobj(_GZIP)
    room, offset, packed = limit, 0, b""
    while not member.eof:
        if not packed:
            packed, offset = body[offset : offset + _GZIP_STEP], offset + _GZIP_STEP
        part = member.decompress(packed, _GZIP_PART)
        packed = member.unconsumed_tail
        if not part and not packed and offset >= len(body) and not member.eof:
            raise ValueError("the body is gzip that was cut off")
        room = _left(room, part)
        yield part
    if member.unused_data or offset < len(body):
        raise ValueError("the body goes on after its gzip member")


def _unzstd(body: bytes, limit: int) -> Iterator[bytes]:
    room, offset = limit, 0
    unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    frame, frames = unpacker.decompressobj(), 1
    while offset < len(body):
        if frame.eof:
            frame, frames = unpacker.decompressobj(), frames + 1
            if frames > _MAX_FRAMES:
                raise ValueError(f"the body has more than {_MAX_FRAMES} frames of zstd; send it in one")
        part = frame.decompress(body[offset : offset + _ZSTD_STEP])
        room = _left(room, part)
        yield part
        offset = min(offset + _ZSTD_STEP, len(body)) - len(frame.unused_data)
    if body and not frame.eof:
        raise ValueError("the body is zstd that was cut off")


def _left(room: int, part: bytes) -> int:
    if len(part) > room:
        raise UnpackedTooLargeError
    return room - len(part)
