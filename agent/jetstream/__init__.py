"""Calls the JetStream API with raw JSON, since nats-py's models drop unknown fields, which updates would then
lose.
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
