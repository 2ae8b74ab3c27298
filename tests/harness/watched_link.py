"""A linked pair whose states are all noted while readings are sent steadily, for tests that break it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent.contract import link_consumer
from agent.jetstream import JetStreamError
from agent.leaf.link.status import LinkState
from tests.harness.agents import chunk, insist, leaf_config
from tests.harness.linked_pair import QUICK, LinkedPair, open_pair
from tests.harness.servers import ServerPair
from tests.harness.wait import WAIT_SECONDS, until

_LOOK_SECONDS = 0.005


class WatchedLink(LinkedPair):
    """`seen` holds every state with its sentence and when it came, in monotonic seconds. What `sends` and
    `flows_on` send is repeated until it is acknowledged."""

    seen: list[tuple[float, LinkState, str]]
    asked = 0

    def watch(self) -> asyncio.Task[None]:
        """Note every state from now on, until cancelled."""
        self.seen = []
        return asyncio.create_task(self._watch())

    async def sends(self, count: int = 10) -> None:
        """Store readings at once, a batch each."""
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(self._insist())

    @asynccontextmanager
    async def flows_on(self, rate: float = 100.0) -> AsyncIterator[None]:
        """So many readings a second as long as the context lasts; all are acknowledged when it ends."""
        async with asyncio.TaskGroup() as group:
            sending = asyncio.create_task(self._send_on(group, rate))
            try:
                yield
            finally:
                sending.cancel()

    async def was(self, state: LinkState, since: float, seconds: float = WAIT_SECONDS) -> str:
        """The sentence of a state that came at or after a monotonic time, once it has."""

        def found() -> list[str]:
            return [said for at, what, said in self.seen if what is state and at >= since]

        await until(lambda: bool(found()), f"the link is {state} once; it is {self.state}", seconds)
        return found()[0]

    def states(self, since: float) -> list[LinkState]:
        """The states that came at or after a monotonic time, in order."""
        return [state for at, state, _ in self.seen if at >= since]

    async def paused_for(self) -> float:
        """Seconds for which the link consumer is still paused."""
        return (await self.link_consumer()).pause_remaining

    async def pause_by_hand(self, seconds: float) -> float:
        """Have the pause of the link consumer end so many seconds from now; one that lies back ends it. The
        seconds that it lasts, as the server says before the keeper of the link can change it."""
        end = datetime.now(UTC) + timedelta(seconds=seconds)
        answer = await self.probe.js.api(
            f"CONSUMER.PAUSE.{self.probe.stream}.{link_consumer(self.epoch)}",
            {"pause_until": end.isoformat().replace("+00:00", "Z")},
        )
        return float(answer.get("pause_remaining", 0)) / 1e9

    async def nothing_lost_or_doubled(self) -> None:
        """All that was acknowledged comes to the hub, each reading once."""
        assert await self.lost_and_doubled(WAIT_SECONDS) == ([], [])

    async def lost_and_doubled(self, seconds: float = 20.0) -> tuple[list[str], list[str]]:
        """Which readings are missing at the hub when so many seconds have passed, and which are there more
        than once."""
        there: Counter[str] = Counter()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not set(self.sent) <= there.keys():
            with suppress(JetStreamError):
                there = Counter(await self.arrived())
        doubled = [text for text, count in there.items() if count > 1]
        return sorted(set(self.sent) - there.keys()), sorted(doubled)

    async def _insist(self) -> None:
        self.asked += 1
        text = f"n{self.asked}"
        await insist(self.agent, chunk(text, key=text))
        self.sent.append(f"{text}/0")

    async def _send_on(self, group: asyncio.TaskGroup, rate: float) -> None:
        while True:
            group.create_task(self._insist())
            await asyncio.sleep(1 / rate)

    async def _watch(self) -> None:
        while True:
            shown = self.agent.leaf.link.status
            if not self.seen or self.seen[-1][1:] != (shown.state, shown.sentence):
                self.seen.append((time.monotonic(), shown.state, shown.sentence))
            await asyncio.sleep(_LOOK_SECONDS)


@asynccontextmanager
async def open_watched_link(servers: ServerPair, state_dir: Path) -> AsyncIterator[WatchedLink]:
    """A linked pair over which some readings have come to the hub."""
    config = leaf_config(servers.leaf, state_dir, QUICK)
    async with open_pair(WatchedLink, servers, config, LinkState.FLOWING) as pair:
        watching = pair.watch()
        try:
            await pair.sends()
            await pair.nothing_lost_or_doubled()
            yield pair
        finally:
            watching.cancel()
