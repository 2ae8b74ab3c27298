"""Compares each mirror with its origin after an interruption.

An origin that lost its end in a power cut reuses sequences, which its mirror does not take. Only a message
that the mirror had before shows it.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from nats.aio.client import Client

from agent.base.nats_server import merged
from agent.config.mirrors import ORIGIN_METADATA, Declared
from agent.jetstream import JetStream, UnavailableError, nanoseconds
from agent.mirrors.decide import is_mirror_of
from agent.mirrors.observation import LocalStream, RemoteStream, StreamProbe

_MOST_ASKED: Final = 10
"""Attempts before an origin counts as not telling."""


class _Newest(Struct):
    """A mirror's newest message at the last silence, and attempts."""

    seq: int
    time: int
    asked: int = 0


class MirrorComparison:
    """Compares over the connections of `probe`."""

    def __init__(self, probe: StreamProbe) -> None:
        self._probe = probe
        self._newest: dict[str, _Newest] = {}
        self._compared: set[str] = set()

    def forget(self, name: str) -> None:
        """Forget a recreated mirror."""
        self._newest.pop(name, None)

    async def compare(
        self, nc: Client, js: JetStream, copy: Declared, local: LocalStream, remote: RemoteStream
    ) -> LocalStream:
        """Return the mirror, marked durably if its origin differs. Raises `JetStreamError`."""
        answers = remote.kind == "answers"
        if not answers:
            self._compared.discard(copy.name)
        if copy.name in self._compared or not is_mirror_of(copy, local):
            return local
        if answers and local.origin_created not in ("", remote.created):
            return local
        newest = self._newest.get(copy.name) or await self._read(js, copy.name, local.last)
        if newest is None or not answers:
            return local
        newest.asked += 1
        try:
            time = await self._probe.time_at(nc, copy.origins[0], newest.seq)
        except UnavailableError:
            if newest.asked < _MOST_ASKED:
                return local
            time = None
        if time is not None and nanoseconds(time) != newest.time:
            local = await _contradicted(js, local, f"{remote.created} without {newest.seq}")
        self._compared.add(copy.name)
        del self._newest[copy.name]
        return local

    async def _read(self, js: JetStream, name: str, last: int) -> _Newest | None:
        subject = f"$JS.API.STREAM.MSG.GET.{name}"
        if self._probe.may_not_ask(subject):
            return None  # a server whose permissions an older version rendered; a question would time out
        try:
            message = await js.get_message(name, seq=last) if last else None
        except UnavailableError:
            if self._probe.may_not_ask(subject):
                return None
            raise
        if message is None:
            return None
        self._newest[name] = _Newest(message.seq, nanoseconds(message.time))
        return self._newest[name]


async def _contradicted(js: JetStream, local: LocalStream, origin: str) -> LocalStream:
    config = merged(local.config, {"metadata": {ORIGIN_METADATA: origin}})
    await js.update_stream(config)
    return replace(local, config=config, origin_created=origin)
