"""The options of the input `socket`."""

from __future__ import annotations

import re
from typing import Annotated, Final

from msgspec import Meta

from agent.config import Seconds, Size
from agent.leaf.inputs.formats.line_formats import Format, Precision
from agent.leaf.inputs.shared.base import InputOptions
from agent.leaf.inputs.socket.address import Access

_MODE: Final = re.compile(r"0?[0-7]{3}\Z").match


class SocketOptions(InputOptions, tag="socket", kw_only=True):
    """The options of one `socket` input. deploy/reference.toml says what each means."""

    name: str = "socket"
    listen: str = "tcp://127.0.0.1:8094"
    format: Format = "ndjson"
    precision: Precision = "ns"
    device_tag: str = "host"
    reply: bool = False
    line: Size = Size(64 * 1024)
    max_connections: Annotated[int, Meta(ge=1, le=10_000)] = 128
    idle: Seconds = Seconds(3600.0)
    buffer: Size = Size(16 * 2**20)
    receive_buffer: Size = Size(4 * 2**20)
    mode: str = "0660"
    user: str | None = None
    group: str | None = None

    @property
    def listens(self) -> str:
        return self.listen


def access(options: SocketOptions) -> Access:
    """Who may open a Unix socket; raises `ValueError`."""
    if not _MODE(options.mode):
        raise ValueError(f'mode is {options.mode!r:.20}; write it in octal, as "0660"')
    return Access(int(options.mode, 8), options.user, options.group)
