"""What a request to JetStream may end with, and the server's own numbers for what is not there."""

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
    """No answer: the server is away, has no JetStream, or the permissions of this user let nothing through.
    Whether the request was carried out is not known."""


class TooLargeError(JetStreamError):
    """The request is above what this connection's server takes in a message, and was not sent."""


class MaxAckPendingError(JetStreamError):
    """As many acknowledgements are under way as may be; the message was not sent."""
