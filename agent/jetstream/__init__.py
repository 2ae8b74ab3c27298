"""The JetStream API as raw JSON.

nats-py's own models drop fields that they do not know (a source's `consumer`, `external` and `seq` among
them), and an update made from such a model would lose them at the server; so configurations are plain
mappings here, as the server writes them.
"""

from agent.jetstream.client import JetStream, end_if_cancelled, request, respond, unless_refused
from agent.jetstream.info import (
    CONSUMER_NOT_FOUND,
    MESSAGE_NOT_FOUND,
    STREAM_NOT_FOUND,
    ApiError,
    ConsumerInfo,
    JetStreamError,
    RawMessage,
    StreamInfo,
    TooLargeError,
    UnavailableError,
    covers,
    nanoseconds,
)

__all__ = [
    "CONSUMER_NOT_FOUND",
    "MESSAGE_NOT_FOUND",
    "STREAM_NOT_FOUND",
    "ApiError",
    "ConsumerInfo",
    "JetStream",
    "JetStreamError",
    "RawMessage",
    "StreamInfo",
    "TooLargeError",
    "UnavailableError",
    "covers",
    "end_if_cancelled",
    "nanoseconds",
    "request",
    "respond",
    "unless_refused",
]
