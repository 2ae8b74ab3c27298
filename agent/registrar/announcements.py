"""Answering one announcement: take the leaf in or say why not, make its sources, look, answer.

A record is stored before the source is changed by it, so that a registrar which dies in between finishes the
change when it is back; and before an answer proposes a checkpoint, so that the hub knows what it proposed
even after the message was purged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from agent.contract import (
    Announce,
    Answer,
    Checkpoint,
    ClassAnswer,
    batch_subject,
    leaf_stream,
    leaf_subjects,
)
from agent.jetstream import JetStream, StreamInfo
from agent.registrar.aggregate import Observation, SourceState
from agent.registrar.aggregate_keeper import AggregateKeeper
from agent.registrar.answer import (
    Stored,
    agreed,
    class_answer,
    class_state,
    held_now,
    proposal,
    stored,
)
from agent.registrar.fleet import ClassRecord, Leaf, admitted, new_epochs, refusal
from agent.registrar.fleet_book import EPOCH_EVERY, FleetBook
from agent.registrar.fleet_store import FleetStore
from agent.registrar.problems import Problems

_OBSERVED: Final = 1.0
_SETTLE_SECONDS: Final = 2.0
_STORE_EVERY: Final = 300.0


class Announcements:
    """Answers announcements of the leaves in `classes`, which gives each domain its configured classes."""

    def __init__(
        self,
        js: JetStream,
        book: FleetBook,
        store: FleetStore,
        keeper: AggregateKeeper,
        classes: Mapping[str, frozenset[str]],
        problems: Problems,
    ) -> None:
        self._js = js
        self._book = book
        self._store = store
        self._keeper = keeper
        self._classes = classes
        self._problems = problems
        self._proven: dict[tuple[str, str], deque[Checkpoint]] = {}
        self._stored: dict[str, tuple[Leaf, float]] = {}

    def begin(self) -> None:
        """The hub's server was away: what was seen before has to be seen again."""
        self._proven.clear()
        self._stored.clear()

    async def answer(self, announce: Announce, linked_at: float) -> Answer:
        """The answer to an announcement that is well formed; `linked_at` is when the leaf's link came up, for
        what was seen before says nothing of it. Raises `ApiError` or `UnavailableError`."""
        now = _now()
        refused = self._refusal(announce, now)
        if refused is not None:
            return Answer(refused=refused)
        changed = await self._take_in(announce, now)
        fresh = now if changed else linked_at
        seen = await self._observe(announce, max(fresh, now - _OBSERVED))
        answers = {cls: await self._class(announce, cls, seen) for cls in announce.classes}
        await self._save(announce.domain, now)
        return Answer(answers)

    def _refusal(self, announce: Announce, now: float) -> str | None:
        domain = announce.domain
        known = self._book.leaves.get(domain)
        refused = refusal(announce, self._classes.get(domain), known, self._book.heard_ago(domain, now))
        if refused is not None:
            if known is not None and known.machine != announce.machine:
                self._book.claimed(domain, announce.machine, now)
                self._problems.begin(f"rival of {domain}", refused)
            return refused
        changed = known is not None and any(
            cls in known.classes and known.classes[cls].epoch != state.epoch
            for cls, state in announce.classes.items()
        )
        if changed and not self._book.may_change(domain, now):
            return (
                f"{domain!r} starts new epochs too often; one in {EPOCH_EVERY:.0f} s is taken, for each of "
                f"them scans the hub's stream"
            )
        return None

    async def _take_in(self, announce: Announce, now: float) -> bool:
        """Bring the record up to date; where the link is another one, have the source changed. Returns
        whether it was another one."""
        domain = announce.domain
        info = (await self._keeper.observe(now - _OBSERVED)).info
        known = self._book.leaves.get(domain)
        now_text = datetime.now(UTC).isoformat(timespec="seconds")
        leaf = admitted(announce, known, (info.name, info.created), now_text)
        self._book.leaves[domain] = leaf
        self._book.heard(announce, now)
        if not new_epochs(leaf, known):
            return False
        await self._store.save(leaf)
        sources = self._book.sources(domain)
        self._keeper.want(sources)
        await self._keeper.settled(sources, _SETTLE_SECONDS)
        return True

    async def _observe(self, announce: Announce, not_before: float) -> Observation:
        """A look at the aggregate that may be a second old, but not where it would tell a leaf less than it
        knows already."""
        seen = await self._keeper.observe(not_before)
        for cls, state in announce.classes.items():
            name = leaf_stream(announce.domain, cls)
            source = seen.states.get(name)
            if source is None or not source.alive:
                self._keeper.silent(name)
            if source is None or source.seq < state.confirmed:
                return await self._keeper.observe()
        return seen

    async def _class(self, announce: Announce, cls: str, seen: Observation) -> ClassAnswer:
        domain, info = announce.domain, seen.info
        state = seen.states.get(leaf_stream(domain, cls))
        record = await self._with_held(domain, cls, state, info)
        checkpoint = announce.checkpoint.get(cls)
        agrees = None
        if checkpoint is not None:
            agrees = await self._agreed(domain, cls, checkpoint, record, info)
            if agrees:
                record = msgspec.structs.replace(record, checkpoint=checkpoint)
            about = f"checkpoint of {domain}/{cls}"
            if agrees is False:
                self._problems.begin(about, f"leaf {domain} and hub disagree on {checkpoint}")
            else:
                self._problems.end(about, f"leaf {domain} and hub agree on {checkpoint}")
        self._book.put(domain, cls, record)
        contested = self._book.rival(domain, _now()) is not None
        batch = None
        if record.held is not None and not record.held.message_id:
            batch = await self._newest(domain, cls, batch_subject(domain, cls, ">"), info)
        return class_answer(record, class_state(state, info, contested=contested), agrees, batch)

    async def _with_held(
        self, domain: str, cls: str, state: SourceState | None, info: StreamInfo
    ) -> ClassRecord:
        newest = None
        held = self._book.leaves[domain].classes[cls].held
        if state is not None and state.seq and (held is None or held.seq < state.seq or not held.message_id):
            newest = await self._newest(domain, cls, leaf_subjects(domain, cls), info)
        record = self._book.leaves[domain].classes[cls]
        held = held_now(record.held, state, newest, info)
        if newest is not None and (seen := proposal(held, info.name)) is not None:
            self._prove(domain, cls, seen)
        return msgspec.structs.replace(record, held=held)

    async def _newest(self, domain: str, cls: str, subject: str, info: StreamInfo) -> Stored | None:
        message = await self._js.get_message(info.name, last_by_subject=subject)
        return stored(message, leaf_stream(domain, cls))

    async def _agreed(
        self, domain: str, cls: str, checkpoint: Checkpoint, record: ClassRecord, info: StreamInfo
    ) -> bool | None:
        if checkpoint in self._proven.get((domain, cls), ()):
            return True
        message = None
        if checkpoint.hub_stream == info.name:
            message = await self._js.get_message(info.name, seq=checkpoint.hub_seq)
        answer = agreed(checkpoint, leaf_stream(domain, cls), record, info, message)
        if answer:
            self._prove(domain, cls, checkpoint)
        return answer

    def _prove(self, domain: str, cls: str, checkpoint: Checkpoint) -> None:
        """This checkpoint was seen in the aggregate, which does not change while its server runs."""
        self._proven.setdefault((domain, cls), deque(maxlen=2)).append(checkpoint)

    async def _save(self, domain: str, now: float) -> None:
        leaf = self._book.leaves[domain]
        old, at = self._stored.get(domain, (None, 0.0))
        unchanged = old is not None and msgspec.structs.replace(old, announced_at=leaf.announced_at) == leaf
        if unchanged and now - at < _STORE_EVERY:
            return
        await self._store.save(leaf)
        self._stored[domain] = (leaf, now)


def _now() -> float:
    return asyncio.get_running_loop().time()
