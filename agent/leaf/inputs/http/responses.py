"""Builds the HTTP answers: success, or a JSON error with the remedy and whether anything was stored.
No I/O.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from agent.base.http.framing import NotHttpError
from agent.base.http.response import Response
from agent.leaf.inputs.formats.ndjson import BadLinesError
from agent.leaf.intake import NotAtHubError, RefusalReason, RefusedError, UnknownOutcomeError

_JSON: Final = "application/json"
NOTHING: Final = "nothing of the request was stored"
ATTEMPT: Final = "nothing of this attempt was stored"
"""Statement on a request whose key is unknown."""
_MAX_REASON: Final = 300


CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
STORED: Final = Response(204)
"""The input's promised level is reached."""
ACCEPTED: Final = Response(
    202,
    json.dumps({"acknowledged": "accepted", "meaning": "held in memory here, not stored yet"}).encode(),
    _JSON,
)


class HttpError(Exception):
    """An answer other than 204.

    `fault` labels `petiole_invalid_requests`, None for a valid request. `unread` closes the connection, since
    the body was not read. `certain` means that the core looked up the key.
    """

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
        return Response(self.status, self.body, self.content_type, self.headers)

    def of_attempt(self, *, keyed: bool) -> HttpError:
        """Return the error without a statement on earlier attempts."""
        earlier = "; what an earlier one under its Idempotency-Key stored stays stored" if keyed else ""
        return HttpError(
            self.status,
            self.error.replace(NOTHING, ATTEMPT + earlier),
            fault=self.fault,
            headers=self.headers,
            details=self.details,
            unread=self.unread,
        )


def at_fault(status: int, fault: str, error: str, *, unread: bool = True, **headers: str) -> HttpError:
    """Return an error for a contract violation; `headers` use `_` for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpError(status, f"{error}; {NOTHING}", fault=fault, headers=named, unread=unread)


def bad_lines(error: BadLinesError) -> HttpError:
    """Return 400 with the bad lines."""
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
    """Return the error for refused readings; `certain` when the core refused."""
    status, headers = error.reason.status, {}
    if error.retry_after is not None and error.reason.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    fault = str(error.reason) if status in (413, 422) else None
    nothing = ATTEMPT if error.reason is RefusalReason.KEY_INCOMPLETE else NOTHING
    return HttpError(
        status, f"{error}; {nothing}", fault=fault, headers=headers, unread=unread, certain=certain
    )


def stopped() -> HttpError:
    """Return 503 for a request during the stop."""
    return refused(RefusedError(RefusalReason.STOPPING, "the agent is stopping"), unread=True)


def too_slow(part: str) -> HttpError:
    """Return 408 for a late `header` or `body`."""
    return at_fault(408, "timeout", f"the {part} of the request did not come in time")


def not_http(error: NotHttpError) -> HttpError:
    """Return 400 for bytes that are no request."""
    return at_fault(400, "not_http", str(error))


def failed() -> HttpError:
    """Return 500 for an internal error."""
    return HttpError(
        500, "an error in the agent: whether the readings are stored is not known; its log says more"
    )


def unknown_outcome(keyed: bool) -> HttpError:
    """Return 504 for an unknown outcome."""
    repeat = (
        "repeat the same body under the same Idempotency-Key, which stores it once"
        if keyed
        else "the request had no Idempotency-Key, so a repeat may store it twice"
    )
    return HttpError(504, f"it is not known yet whether the readings are stored; {repeat}")


def of_outcome(error: Exception, keyed: bool) -> HttpError | None:
    """Return the answer for unstored or unknown readings; None for an internal error."""
    match error:
        case HttpError():
            return error
        case RefusedError():
            return refused(error, certain=True)
        case NotAtHubError():
            return not_at_hub(error, keyed)
        case UnknownOutcomeError():
            return unknown_outcome(keyed)
    return None


def not_at_hub(error: NotAtHubError, keyed: bool) -> HttpError:
    """Return 504 for readings stored here but not yet at the hub."""
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


HTTP2_PREFACE: Final = b"PRI * HTTP/2"
"""Start of an HTTP/2 connection."""
HTTP2_TEXT: Final = (
    "this input speaks HTTP/1.1, and HTTP/2 came, which gRPC needs; send OTLP as http/protobuf, or by gRPC "
    "to an input of the type otlp_grpc"
)
_HTTP2_SETTINGS: Final = bytes(3) + b"\x04" + bytes(5)
_HTTP2_REASON: Final = bytes(4) + (13).to_bytes(4, "big") + HTTP2_TEXT.encode()
HTTP2_GO_AWAY: Final = (
    _HTTP2_SETTINGS + len(_HTTP2_REASON).to_bytes(3, "big") + b"\x07" + bytes(5) + _HTTP2_REASON
)
"""HTTP_1_1_REQUIRED with reason (RFC 9113, 6.8)."""
