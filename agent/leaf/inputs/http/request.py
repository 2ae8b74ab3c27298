"""What a request asks for, by its first line and headers. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final, NamedTuple

from aiohttp.web import BaseRequest
from multidict import CIMultiDictProxy

from agent import contract
from agent.base.http_access import Hosts, shows
from agent.leaf.inputs.formats.ndjson import MAX_ARRAY_BYTES
from agent.leaf.inputs.http.responses import HttpError, at_fault

PATH: Final = "/v1/readings"


class ResourceKind(Enum):
    """What is at a path."""

    READINGS = auto()
    LINES = auto()
    METRICS = auto()
    GREETING = auto()


_KINDS: Final = {
    PATH: ResourceKind.READINGS,
    "/write": ResourceKind.LINES,
    "/api/v2/write": ResourceKind.LINES,
    "/v1/metrics": ResourceKind.METRICS,
    "/ping": ResourceKind.GREETING,
    "/health": ResourceKind.GREETING,
}
_JSON: Final = "application/json"
_PROTOBUF: Final = "application/x-protobuf"
_OTHER: Final = {ResourceKind.READINGS: contract.NDJSON, ResourceKind.METRICS: _PROTOBUF}
"""What may be sent beside JSON, where the type of a body is asked."""
_SMALLER: Final = {
    ResourceKind.READINGS: f"; a JSON array may not be larger, {contract.NDJSON} may",
    ResourceKind.METRICS: "; export fewer points at a time",
    ResourceKind.LINES: "",
}
_PLAIN: Final = "identity"
_ENCODINGS: Final = (_PLAIN, "gzip", "zstd")


class RequestHead(NamedTuple):
    """A request with a body, whose header is in order; `target` is its path and query; `encoding` None for a
    plain body; `limit` bounds its body in bytes, as it comes and unpacked."""

    kind: ResourceKind
    target: str
    is_json: bool
    encoding: str | None
    key: str | None
    limit: int
    waits: bool

    def too_large(self, *, unread: bool = True) -> HttpError:
        """413 for this request."""
        hint = _SMALLER[self.kind] if self.limit == MAX_ARRAY_BYTES else ""
        return at_fault(413, "too_large", f"the body is above {self.limit} bytes{hint}", unread=unread)


def kind_of(request: BaseRequest) -> ResourceKind | None:
    """What a request is about, None for a path where there is nothing."""
    return _KINDS.get(request.path)


def read_header(request: BaseRequest, guard: Guard, body_limit: int, *, otlp: bool) -> RequestHead | None:
    """Check all that stands before the body; None for a request that has none. Raises `HttpError`."""
    headers = request.headers
    if not guard.admits_host(headers.get("Host")):
        raise at_fault(421, "host", "this Host is not served here (option allowed_hosts)")
    if not guard.admits_origin(headers.get("Origin")):
        raise at_fault(403, "origin", "this Origin may not post (option allowed_origins)")
    kind = kind_of(request)
    if kind is not ResourceKind.GREETING and not guard.admits_token(headers.get("Authorization")):
        raise at_fault(
            401,
            "token",
            "send the token of this input: Authorization: Bearer …",
            WWW_Authenticate='Bearer realm="petiole"',
        )
    if kind is ResourceKind.METRICS and not otlp:
        raise at_fault(404, "path", "OTLP is not taken here (option otlp)")
    if kind is None:
        raise at_fault(404, "path", f"there is nothing at this path: readings go to POST {PATH}")
    greets = kind is ResourceKind.GREETING
    if request.method not in (("GET", "HEAD") if greets else ("POST",)):
        wanted, allow = ("GET", "GET, HEAD") if greets else ("POST readings", "POST")
        raise at_fault(405, "method", f"{request.method:.16} is not possible here: {wanted}", Allow=allow)
    if greets:
        return None
    content_type = headers.get("Content-Type", "")
    is_json = kind in _OTHER and _is_json(content_type, _OTHER[kind])
    at_once = is_json or kind is ResourceKind.METRICS
    encoding = headers.get("Content-Encoding", _PLAIN)
    if encoding not in _ENCODINGS:
        raise at_fault(415, "encoding", "Content-Encoding must be gzip, zstd or none")
    asked = RequestHead(
        kind=kind,
        target=request.path_qs,
        is_json=is_json,
        encoding=None if encoding == _PLAIN else encoding,
        key=_key(headers) if "Idempotency-Key" in headers else None,
        limit=min(body_limit, MAX_ARRAY_BYTES) if at_once else body_limit,
        waits=_waits(headers.get("Expect")),
    )
    _check_length(headers, asked)
    return asked


def _is_json(header: str, other: str) -> bool:
    kind, _, parameters = header.partition(";")
    kind = kind.strip().lower()
    if kind not in (other, _JSON):
        raise at_fault(415, "content_type", f"Content-Type must be {other} or {_JSON}")
    if parameters and "charset" in parameters and "utf-8" not in parameters.lower():
        raise at_fault(415, "content_type", "the charset must be utf-8")
    return kind == _JSON


def _key(headers: CIMultiDictProxy[str]) -> str:
    keys = headers.getall("Idempotency-Key")
    if len(keys) != 1:
        raise at_fault(400, "key", "there is more than one Idempotency-Key")
    try:
        return contract.check_request_key(keys[0])
    except contract.ContractError as error:
        raise at_fault(400, "key", str(error)) from None


def _waits(expect: str | None) -> bool:
    """Whether the sender waits for 100 before it sends the body (RFC 9110, 10.1.1)."""
    if expect is None:
        return False
    if expect.lower() != "100-continue":
        raise at_fault(417, "expect", "Expect must be 100-continue or absent")
    return True


def _check_length(headers: CIMultiDictProxy[str], asked: RequestHead) -> None:
    length = headers.get("Content-Length")
    if length is None and "Transfer-Encoding" not in headers:
        raise at_fault(411, "length", "send Content-Length or Transfer-Encoding: chunked")
    if length is not None and int(length) > asked.limit:
        raise asked.too_large()


class Guard:
    """The names of one listener, the origins that may post to it, and what they must show."""

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

    def admits_host(self, header: str | None) -> bool:
        """Whether a `Host` header names this listener; its port does not matter."""
        return self._hosts.admit(header)

    def admits_origin(self, header: str | None) -> bool:
        """Whether an `Origin` header may post; programs send none."""
        return header is None or header in self._origins

    def admits_token(self, header: str | None) -> bool:
        """Whether an `Authorization` header shows the token, where there is one."""
        return self._token is None or shows(header, self._token)
