"""The blocking NATS client of the hub jobs: what to import from it. No Spark, no asyncio, no reconnect."""

from __future__ import annotations

from hub_jobs.source.connection import Connection
from hub_jobs.source.protocol import (
    ApiError,
    Denied,
    RangeLost,
    UnknownIdentity,
    Unreachable,
    WireError,
    header,
    parse_headers,
)
from hub_jobs.source.ranges import Columns, StreamRecord, read_columns, read_range
from hub_jobs.source.server import Server
from hub_jobs.source.streams import (
    SOURCE_HEADER,
    SourceKey,
    StreamInfo,
    StreamLimits,
    index_name,
    name_hash,
    origin,
    parse_source,
    source_index,
    stream_info,
)

__all__ = [
    "SOURCE_HEADER",
    "ApiError",
    "Columns",
    "Connection",
    "Denied",
    "RangeLost",
    "Server",
    "SourceKey",
    "StreamInfo",
    "StreamLimits",
    "StreamRecord",
    "UnknownIdentity",
    "Unreachable",
    "WireError",
    "header",
    "index_name",
    "name_hash",
    "origin",
    "parse_headers",
    "parse_source",
    "read_columns",
    "read_range",
    "source_index",
    "stream_info",
]
