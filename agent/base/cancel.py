"""Waiting that ends when the agent stops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def unless(stopping: asyncio.Event, wanted: Coroutine[Any, Any, T]) -> T | None:
    """Wait for something, but no longer than until the agent stops: then None, and it is cancelled."""
    task, stop = asyncio.ensure_future(wanted), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        stop.cancel()
