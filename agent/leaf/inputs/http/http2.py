"""The answer to senders that speak HTTP/2, in their words."""

from __future__ import annotations

from typing import Final

PREFACE: Final = b"PRI * HTTP/2"
"""How such a connection begins."""
TEXT: Final = (
    "this input speaks HTTP/1.1, and HTTP/2 came, which gRPC needs; send OTLP as http/protobuf, and take "
    "Telegraf's output influxdb_v2 or http, for its output opentelemetry can only do gRPC"
)
_SETTINGS: Final = bytes(3) + b"\x04" + bytes(5)
_REASON: Final = bytes(4) + (13).to_bytes(4, "big") + TEXT.encode()
GO_AWAY: Final = _SETTINGS + len(_REASON).to_bytes(3, "big") + b"\x07" + bytes(5) + _REASON
"""HTTP_1_1_REQUIRED, with the reason, as a client of HTTP/2 reads it (RFC 9113, 6.8)."""
