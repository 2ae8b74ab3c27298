"""The errors of requests to JetStream, and the server's numbers for what does not exist."""

from __future__ import annotations

from typing import Final

STREAM_NOT_FOUND: Final = 10059
CONSUMER_NOT_FOUND: Final = 10014
MESSAGE_NOT_FOUND: Final = 10037


class JetStreamError(Exception):
    """A request to JetStream was refused or not answered."""


class ApiError(JetStreamError):
    """The server refused: `code` is HTTP-like, `err_code` the server's own number of the reason."""

    def __init__(self, code: int, err_code: int, description: str, verb: str) -> None:
        super().__init__(f"JetStream refused {verb}: {description} (error {err_code})")
        self.code = code
        self.err_code = err_code
        self.description = description
        self.verb = verb


class UnavailableError(JetStreamError):
    """No answer: the server is unreachable, has no JetStream, or does not permit this user the request.
    Whether the request was carried out is unknown."""


class TooLargeError(JetStreamError):
    """The request is larger than the server accepts in a message, and was not sent."""


class MaxAckPendingError(JetStreamError):
    """The window of acknowledgements in flight is full; the message was not sent."""
