"""The options of the input `otlp_grpc`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from agent.config import Size
from agent.leaf.inputs.shared.access import AccessOptions


class OtlpGrpcOptions(AccessOptions, tag="otlp_grpc", kw_only=True):
    """The options of one `otlp_grpc` input. deploy/reference.toml says what each means."""

    name: str = "otlp_grpc"
    listen: str = "127.0.0.1:4317"
    body: Size = Size(2**20)
    max_connections: Annotated[int, Meta(ge=1)] = 128
    buffer: Size = Size(64 * 2**20)
