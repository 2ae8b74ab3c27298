"""Reads the head of an HTTP answer from proxies and websockets."""

from __future__ import annotations

import asyncio
from typing import Final

from agent.base.logs import shown

_SHOWN: Final = 60


class HeadError(Exception):
    """An unexpected head; the text is its status or start."""


async def read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    """Return status (`200 OK`) and lower-case headers. Raises `HeadError`, `OSError`, or `EOFError`."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise HeadError("an endless answer") from None
    first, *rest = head.decode("latin-1").split("\r\n")
    version, _, status = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise HeadError(repr(first[:_SHOWN]))
    pairs = (line.partition(":") for line in rest)
    return shown(status[:_SHOWN]), {name.strip().lower(): value.strip() for name, _, value in pairs}
