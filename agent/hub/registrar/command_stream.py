"""What is in the hub's stream of commands, looked at once for all leaves: the newest command of each and the
consumers that there are.

While nothing changes a look is one request. New commands are read one by one, so that only their leaves have
news; a consumer that somebody else deleted shows in their number at once, and by name once a minute.
"""

from __future__ import annotations

import asyncio
from typing import Final

from agent.base.wait import loop_time
from agent.contract import COMMANDS, command_subjects
from agent.hub.registrar.aggregate import commands_config
from agent.jetstream import JetStream, JetStreamError, StreamInfo

_LIST_SECONDS: Final = 60.0
_ONE_BY_ONE: Final = 256
"""More new commands than that at once are not read: the newest of each leaf is asked for then."""


class CommandStream:
    """The stream of commands, which stands on so many servers of the hub."""

    def __init__(self, js: JetStream, replicas: int = 1) -> None:
        self._js, self._replicas = js, replicas
        self._looking = asyncio.Lock()
        self.begin()

    def begin(self) -> None:
        """The hub's server was away: what was seen before has to be seen again."""
        self._seen: StreamInfo | None = None
        self._asked = float("-inf")
        self._listed_at = float("-inf")
        self._newest: dict[str, int] = {}
        self._having: set[str] = set()
        """The domains that had a command when the stream was first looked at, or have since."""
        self.delivers: dict[str, str] = {}
        """The subject on which each consumer delivers, "" where it was not looked at. Who makes or deletes a
        consumer notes it here."""

    async def looked(self) -> bool:
        """Look, once somebody else has; whether that succeeded. To be called each second."""
        if self._seen is None or not self._js.connected:
            return False
        try:
            await self.look()
        except JetStreamError:
            return False  # what is not seen in time does not hold; the next one who asks learns why
        return True

    async def look(self) -> StreamInfo:
        """The stream as it is now; those who ask together share one question. Raises `ApiError` or
        `UnavailableError`."""
        wanted = loop_time()
        async with self._looking:
            if self._seen is None or self._asked < wanted:
                asked = loop_time()
                info = await self._js.get_or_create_stream(commands_config(self._replicas))
                await self._compare(self._seen, info)
                self._seen, self._asked = info, asked
            assert self._seen is not None
            return self._seen

    def seen_since(self, since: float) -> StreamInfo | None:
        """The stream at the newest look, None if that was before a monotonic time."""
        return self._seen if self._asked >= since else None

    def newest_known(self, domain: str) -> int | None:
        """The sequence of a leaf's newest command, 0 without one, None if it has to be asked for."""
        found = self._newest.get(domain)
        return 0 if found is None and domain not in self._having else found

    async def newest(self, domain: str) -> int:
        """The same; asks if need be. Raises `ApiError` or `UnavailableError`."""
        if (known := self.newest_known(domain)) is not None:
            return known
        message = await self._js.get_message(COMMANDS, last_by_subject=command_subjects(domain))
        self._newest[domain] = found = message.seq if message is not None else 0
        return found

    async def _compare(self, old: StreamInfo | None, info: StreamInfo) -> None:
        if old is None or info.created != old.created or info.last < old.last:
            await self._read_subjects()
            # All at once: after a start of the registrar each leaf's next announcement asks about its own.
            self.delivers = {
                consumer.name: consumer.config.get("deliver_subject", "")
                async for consumer in self._js.consumers(COMMANDS)
            }
            self._listed_at = float("-inf")
        else:
            await self._read_new(old, info)
        now = loop_time()
        if info.consumers != len(self.delivers) or now - self._listed_at >= _LIST_SECONDS:
            names = await self._js.consumer_names(COMMANDS)
            self.delivers = {name: self.delivers.get(name, "") for name in names}
            self._listed_at = now

    async def _read_subjects(self) -> None:
        self._newest.clear()
        answer = await self._js.api(f"STREAM.INFO.{COMMANDS}", {"subjects_filter": "cmd.>"})
        self._having = {subject.split(".")[1] for subject in answer["state"].get("subjects") or {}}

    async def _read_new(self, old: StreamInfo, info: StreamInfo) -> None:
        new = range(old.last + 1, info.last + 1)
        if old.messages + len(new) != info.messages:
            self._newest.clear()  # some have expired, or were deleted
        if len(new) > _ONE_BY_ONE:
            return await self._read_subjects()
        for seq in new:
            message = await self._js.get_message(COMMANDS, seq=seq)
            if message is not None:
                domain = message.subject.split(".")[1]
                self._having.add(domain)
                self._newest[domain] = seq
        return None
