"""The options of the input `http`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from agent import contract
from agent.config import Seconds, Size
from agent.leaf.inputs.shared import HasMapping, NamedMap, NamedPreset
from agent.leaf.inputs.shared.access import AccessOptions


class HttpOptions(HasMapping, AccessOptions, tag="http", kw_only=True):
    """The options of one `http` input. deploy/reference.toml says what each means."""

    name: str = "http"
    listen: str = "127.0.0.1:8080"
    body: Size = Size(contract.MAX_BODY_BYTES)
    max_connections: Annotated[int, Meta(ge=1)] = 128
    buffer: Size = Size(64 * 2**20)
    map: NamedMap = None
    preset: NamedPreset = None
    device_tag: str = "host"
    otlp: bool = False
    remote_write: bool = False
    remote_write_device: str | None = None
    timeout: Seconds = Seconds(30.0)
    allowed_hosts: list[str] = field(default_factory=list)
    allowed_origins: list[str] = field(default_factory=list)
