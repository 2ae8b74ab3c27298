"""Checks request heads and unpacks bodies within limits per body and in total. No I/O.

`Guard` checks `Host`, `Origin` and token, so that web pages in a local browser can't post (DNS rebinding,
cross-site).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

from agent import contract
from agent.base.http.access import Hosts, shows
from agent.base.http.framing import HttpRequest
from agent.leaf.inputs.http.limits import BodyLimits
from agent.leaf.inputs.http.responses import HttpError, at_fault

READINGS_PATH: Final = "/v1/readings"
KEY: Final = "idempotency-key"


class Guard:
    """Admits requests by host name, origin and token."""

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
        """Raise `HttpError` for a forbidden request; open paths need no token. `shown` is a token in
        the URL.
        """
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
    """The head of a request with body."""

    target: str
    """Path and query."""
    is_json: bool
    encoding: str | None
    """None for a plain body."""
    key: str | None
    """The `Idempotency-Key`."""
    limits: BodyLimits
    waits: bool = False
    """Whether the sender expects 100 first."""
    size_hint: str = ""
    """Text added to 413."""
    time_unit: int = 1
    """Nanoseconds per time step of the body."""

    def too_large(self, *, unread: bool = True) -> HttpError:
        return at_fault(
            413, "too_large", f"the body is above {self.limits.body} bytes{self.size_hint}", unread=unread
        )


def check_method(request: HttpRequest, remedy: str, *methods: str) -> None:
    """Raise `HttpError` 405 for other methods."""
    if request.method not in methods:
        allow = ", ".join(methods)
        raise at_fault(405, "method", f"{request.method:.16} is not possible here: {remedy}", Allow=allow)


def request_key(request: HttpRequest) -> str:
    """The `Idempotency-Key`. Raises `HttpError` for two, and for one that is none."""
    if KEY in request.repeated:
        raise at_fault(400, "key", "there is more than one Idempotency-Key")
    try:
        return contract.check_request_key(request.headers[KEY])
    except contract.ContractError as error:
        raise at_fault(400, "key", str(error)) from None


def body_key(body: bytes) -> str:
    """Return the key of a request identified by its body."""
    return blake2b(body, digest_size=16).hexdigest()


def waits(expect: str | None) -> bool:
    """Whether the sender waits for 100 before it sends the body (RFC 9110, 10.1.1)."""
    if expect is None:
        return False
    if expect.lower() != "100-continue":
        raise at_fault(417, "expect", "Expect must be 100-continue or absent")
    return True
