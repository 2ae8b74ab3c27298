"""What the HTTP input answers: success, or a status with a JSON body that says what to do, and whether
anything was stored. No I/O."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from aiohttp.web import BaseRequest, Response, StreamResponse

from agent.leaf.inputs.formats.ndjson import BadLinesError
from agent.leaf.intake import NotAtHubError, RefusalReason, RefusedError

SERVER: Final = {"Server": "petiole"}
_JSON: Final = "application/json"
NOTHING: Final = "nothing of the request was stored"
ATTEMPT: Final = "nothing of this attempt was stored"
"""What can be said of a request whose key was not looked up, or is not known."""
_MAX_REASON: Final = 300
_RETRY_AFTER: Final = 5.0
_STATUS: Final = {
    RefusalReason.TOO_LARGE: 413,
    RefusalReason.FULL: 429,
    RefusalReason.RATE: 429,
    RefusalReason.BUSY: 503,
    RefusalReason.UNAVAILABLE: 503,
    RefusalReason.STOPPING: 503,
    RefusalReason.KEY_REUSED: 422,
}


class Success(StreamResponse):
    """An answer of success as bytes: what a general response costs is a twentieth of a whole request. For a
    connection that is kept; one instance serves all requests."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(status=status)
        self._text = text
        self._raw = f"HTTP/1.1 {status} {self.reason}\r\nServer: {SERVER['Server']}\r\n".encode()
        if text:
            self._raw += f"Content-Type: {_JSON}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()
        else:
            self._raw += b"\r\n"

    @property
    def keep_alive(self) -> bool:
        return True

    async def prepare(self, request: BaseRequest) -> None:
        """Send it."""
        if request.transport is None:
            raise ConnectionResetError
        request.transport.write(self._raw)

    async def write_eof(self, data: bytes = b"") -> None:
        """There is nothing after the header."""

    def general(self) -> Response:
        """The same, for a connection that closes."""
        if not self._text:
            return Response(status=self.status, headers=SERVER)
        return Response(status=self.status, text=self._text, headers=SERVER, content_type=_JSON)


STORED: Final = Success(204)
"""What the level of the input promises is so: stored, or held by the hub."""
ACCEPTED: Final = Success(
    202, json.dumps({"acknowledged": "accepted", "meaning": "held in memory here, not stored yet"})
)


class HttpError(Exception):
    """An answer other than 204. `fault` is the label under which `petiole_invalid_requests` counts it, None
    where the request was in order. `unread`: the body was not read to its end, so the connection closes.
    `certain`: the core said so, which has looked the key of the request up."""

    def __init__(
        self,
        status: int,
        error: str,
        *,
        fault: str | None = None,
        headers: dict[str, str] | None = None,
        details: dict[str, Any] | None = None,
        unread: bool = False,
        certain: bool = False,
    ) -> None:
        super().__init__(error)
        self.certain = certain
        self.status = status
        self.error = error
        self.fault = fault
        self.headers = headers or {}
        self.details = details or {}
        self.body = json.dumps({"error": error, **self.details}, ensure_ascii=False).encode(
            errors="backslashreplace"
        )
        self.unread = unread
        self.content_type = _JSON

    def response(self) -> Response:
        """The answer as aiohttp sends it."""
        response = Response(
            status=self.status,
            body=self.body,
            headers={**SERVER, **self.headers, "Content-Type": self.content_type},
        )
        if self.unread:
            response.force_close()
        return response

    def of_attempt(self, *, keyed: bool) -> HttpError:
        """The same without a word on earlier attempts of the request, of which this one knows nothing."""
        earlier = "; what an earlier one under its Idempotency-Key stored stays stored" if keyed else ""
        return HttpError(
            self.status,
            self.error.replace(NOTHING, ATTEMPT + earlier),
            fault=self.fault,
            headers=self.headers,
            details=self.details,
            unread=self.unread,
        )

    def raw(self) -> bytes:
        """The answer as bytes, for a connection that has no request yet; it closes after it."""
        head = (
            f"HTTP/1.1 {self.status} {self.fault or 'refused'}\r\nServer: {SERVER['Server']}\r\n"
            f"Content-Type: {self.content_type}\r\nContent-Length: {len(self.body)}\r\nConnection: close\r\n"
        )
        extra = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        return f"{head}{extra}\r\n".encode() + self.body


def at_fault(status: int, fault: str, error: str, *, unread: bool = True, **headers: str) -> HttpError:
    """The sender's request breaks the contract; `headers` with `_` for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpError(status, f"{error}; {NOTHING}", fault=fault, headers=named, unread=unread)


def bad_lines(error: BadLinesError) -> HttpError:
    """400 that names the lines at fault."""
    total = len(error.lines) + error.more
    count = f"{total}" if error.counted else f"at least {total}"
    listed = [{"line": number, "reason": reason[:_MAX_REASON]} for number, reason in error.lines]
    return HttpError(
        400,
        f"{count} line(s) cannot be taken; {NOTHING}",
        fault="bad_lines",
        details={"lines": listed, "more": error.more},
    )


def refused(error: RefusedError, *, unread: bool = False, certain: bool = False) -> HttpError:
    """What was refused, so that the sender still has it; `certain` where the core did."""
    status = _STATUS[error.reason]
    headers = {}
    if status in (429, 503):
        wait = _RETRY_AFTER if error.retry_after is None else error.retry_after
        headers["Retry-After"] = str(max(1, math.ceil(wait)))
    fault = str(error.reason) if status in (413, 422) else None
    return HttpError(
        status, f"{error}; {NOTHING}", fault=fault, headers=headers, unread=unread, certain=certain
    )


def stopped() -> HttpError:
    """503 for a request that came too late."""
    return refused(RefusedError(RefusalReason.STOPPING, "the agent is stopping"), unread=True)


def unknown_outcome(keyed: bool) -> HttpError:
    """504: the outcome is unknown."""
    repeat = (
        "repeat the same body under the same Idempotency-Key, which stores it once"
        if keyed
        else "the request had no Idempotency-Key, so a repeat may store it twice"
    )
    return HttpError(504, f"it is not known yet whether the readings are stored; {repeat}")


def not_at_hub(error: NotAtHubError, keyed: bool) -> HttpError:
    """504: stored here, and not seen at the hub in time."""
    if error.lost:
        return HttpError(
            504, f"{error}; under a new Idempotency-Key it is stored again, and may then be there twice"
        )
    repeat = (
        "repeat the same body under the same Idempotency-Key, which waits for the hub and stores it once"
        if keyed
        else "it goes there by itself; the request had no Idempotency-Key, so a repeat stores it twice"
    )
    return HttpError(504, f"{error}; {repeat}", details={"acknowledged": "stored"})
