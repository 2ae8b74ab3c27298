"""Compares each mirror with its origin once that answers, at first or again.

An origin that lost its newest messages in a power cut, and has stored others under their sequences since, is
not behind its mirror, which takes none of those. It shows only at a message that the mirror had before: what
it takes later is the same on both sides.
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
"""An origin that has not answered so often does not say what it holds."""


class _Newest(Struct):
    """The newest message of a mirror when its origin was last silent, and how often that was asked for it."""

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
        """The mirror of this name is created again."""
        self._newest.pop(name, None)

    async def compare(
        self, nc: Client, js: JetStream, copy: Declared, local: LocalStream, remote: RemoteStream
    ) -> LocalStream:
        """The mirror, which says that it has another origin once that is found. It says so to the next agent,
        too. Raises `JetStreamError`."""
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
