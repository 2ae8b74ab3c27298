"""The head of a request: who may send it, and what its line and headers say. No I/O.

A page in a browser on this machine must not reach the input, neither by name (DNS rebinding) nor across
sites: `Guard` checks `Host`, `Origin` and the token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent import contract
from agent.base.http_access import Hosts, shows
from agent.leaf.inputs.formats.ndjson import MAX_ARRAY_BYTES
from agent.leaf.inputs.http.framing import HttpRequest
from agent.leaf.inputs.http.responses import HttpError, at_fault

if TYPE_CHECKING:
    from agent.leaf.inputs.http.routes import Route

READINGS_PATH: Final = "/v1/readings"
KEY: Final = "idempotency-key"
_JSON: Final = "application/json"
_PLAIN: Final = "identity"
_ENCODINGS: Final = (_PLAIN, "gzip", "zstd")


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

    def admit(self, headers: Mapping[str, str], *, open_path: bool) -> None:
        """Raises `HttpError` for a request that may not come in; an open path needs no token."""
        if not self._hosts.admit(headers.get("host")):
            raise at_fault(421, "host", "this Host is not served here (option allowed_hosts)")
        origin = headers.get("origin")  # programs send none
        if origin is not None and origin not in self._origins:
            raise at_fault(403, "origin", "this Origin may not post (option allowed_origins)")
        if open_path or self._token is None or shows(headers.get("authorization"), self._token):
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
    media_type = route.media_type
    is_json = media_type is not None and _is_json(headers.get("content-type", ""), media_type)
    encoding = headers.get("content-encoding", _PLAIN)
    if encoding not in _ENCODINGS:
        raise at_fault(415, "encoding", "Content-Encoding must be gzip, zstd or none")
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


def _is_json(header: str, media_type: str) -> bool:
    kind, _, parameters = header.partition(";")
    kind = kind.strip().lower()
    if kind not in (media_type, _JSON):
        raise at_fault(415, "content_type", f"Content-Type must be {media_type} or {_JSON}")
    if parameters and "charset" in parameters and "utf-8" not in parameters.lower():
        raise at_fault(415, "content_type", "the charset must be utf-8")
    return kind == _JSON


def _key(request: HttpRequest) -> str:
    if KEY in request.repeated:
        raise at_fault(400, "key", "there is more than one Idempotency-Key")
    try:
        return contract.check_request_key(request.headers[KEY])
    except contract.ContractError as error:
        raise at_fault(400, "key", str(error)) from None


def _waits(expect: str | None) -> bool:
    """Whether the sender waits for 100 before it sends the body (RFC 9110, 10.1.1)."""
    if expect is None:
        return False
    if expect.lower() != "100-continue":
        raise at_fault(417, "expect", "Expect must be 100-continue or absent")
    return True
