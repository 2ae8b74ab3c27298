"""A JetStream of several servers, asked again where nobody answered: a request that comes while its leader
changes is dropped without a word (seen on 2.15.1)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from agent.jetstream import JetStream, UnavailableError

_TRIES = 15
_TRY_SECONDS = 3.0
_PAUSE = 0.2

_Answer = TypeVar("_Answer")


class PatientJetStream(JetStream):
    """Requests that may be made twice without harm, made until they are answered; with a `timeout` they are
    made once."""

    async def api(
        self, verb: str, request: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        once = super().api
        if timeout is not None:
            return await once(verb, request, timeout)
        return await _insisted(lambda: once(verb, request, _TRY_SECONDS))

    async def publish(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> int:
        once = super().publish
        told = {"Nats-Msg-Id": uuid.uuid4().hex, **(headers or {})}
        if timeout is not None:
            return await once(subject, data, told, timeout)
        return await _insisted(lambda: once(subject, data, told, _TRY_SECONDS))


async def _insisted(ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
    for _ in range(_TRIES - 1):
        try:
            return await ask()
        except UnavailableError:
            await asyncio.sleep(_PAUSE)  # that nobody listens yet is answered at once
    return await ask()
