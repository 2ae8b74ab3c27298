"""Reads the head of an HTTP answer, as a proxy or a websocket server gives it."""

from __future__ import annotations

import asyncio
from typing import Final

from agent.base.logs import shown

_SHOWN: Final = 60


class HeadError(Exception):
    """It is not the head that was expected; the text is its status or its first words."""


async def read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    """The status (`200 OK`) and the headers by their small names. Raises `HeadError`, `OSError`, or
    `EOFError` where the connection ended."""
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
