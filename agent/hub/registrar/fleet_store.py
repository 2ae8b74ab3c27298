"""Stores the fleet's records in the hub's bucket, with conditions and space for the lease.

A full replicated bucket refuses replacements (`findings/nats-full-stream-of-three-refuses-a-replacement.sh`),
even of the lease, so records stop before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from typing import Final, TypeVar

import msgspec
import structlog
from nats.aio.client import Client
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_fixed

from agent.base.wait import Pacer, bounded_gather
from agent.contract import AGGREGATES, FLEET_BUCKET, HUB_LAKE, AuditPart, ContractError
from agent.hub.registrar.aggregate import fleet_config
from agent.hub.registrar.problems import ActiveProblems
from agent.hub.registrar.records import LeafRecord, PurgeMarker, decode_leaf, decode_noted, encode
from agent.jetstream import ApiError, JetStream, JetStreamError
from agent.jetstream.info import WRITE_IN_FLIGHT, PubAck
from agent.jetstream.readers import read_all, read_newest

BUCKET: Final = f"KV_{FLEET_BUCKET}"
_LET_IN: Final = f"$KV.{FLEET_BUCKET}.let.in"
_LAKE: Final = f"$KV.{FLEET_BUCKET}.{HUB_LAKE}"
_AGGREGATES: Final = f"$KV.{FLEET_BUCKET}.{AGGREGATES}"
_COPIES: Final = f"copies of {BUCKET}"
_FEW: Final = 100
"""Records read singly."""

_DRAWS: Final = 16
"""Random reads; of three servers one is missed once in 600, two once in 10^7."""
_AT_ONCE: Final = 500
"""Records per request; servers give 1,024."""

log = structlog.get_logger("registrar")

Record = TypeVar("Record")


class FleetStore:
    """Reads and writes records without interpreting them."""

    def __init__(self, nc: Client, js: JetStream, replicas: int, problems: ActiveProblems) -> None:
        self._nc, self._js = nc, js
        self._replicas = replicas
        self._problems = problems
        self._stored: dict[str, LeafRecord] = {}
        self._lacking: set[str] = set()
        """Domains whose records a replica lacks, until stored."""
        self._created, self._last = "", 0

    async def ensure(self) -> None:
        """Create the bucket. Raises `ApiError` or `UnavailableError`."""
        self._stored.clear()
        info = await self._js.ensure_stream(fleet_config(self._replicas))
        self._created, self._last = info.created, info.last

    async def save(self, leaf: LeafRecord) -> None:
        """Store a leaf's record. Raises `ApiError` or `UnavailableError`."""
        await self._put(_subject(leaf.domain), encode(leaf))
        self._stored[leaf.domain] = leaf
        self._lack(self._lacking - {leaf.domain})

    def holds(self, leaf: LeafRecord) -> bool:
        """Tell whether this record is stored, as far as known."""
        return self._stored.get(leaf.domain) is leaf

    async def save_changed(self, leaf: LeafRecord) -> None:
        """Store a leaf's record unless only its time changed."""
        old = self._stored.get(leaf.domain)
        if old is None or msgspec.structs.replace(old, announced_at=leaf.announced_at) != leaf:
            await self.save(leaf)
        else:
            self._stored[leaf.domain] = leaf

    async def save_all(self, leaves: Iterable[LeafRecord]) -> None:
        """Store records in parallel. Raises `ApiError` or `UnavailableError`."""
        await bounded_gather(self.save, leaves)

    async def check(self) -> None:
        """Check that records are still stored, else forget that. Raises `ApiError` or `UnavailableError`."""
        records, last = len(self._stored), self._last
        info = await self._js.ensure_stream(fleet_config(self._replicas))
        if info.created == self._created and info.last >= last and info.messages >= records:
            return
        log.warning("fleet records differ; stored again")
        self._stored.clear()
        self._created, self._last = info.created, info.last

    async def note(self, noted: PurgeMarker) -> None:
        """Store an aggregate's mark. Raises `ApiError` or `UnavailableError`."""
        await self._put(_noted_subject(noted.stream), encode(noted))

    async def load(self, domains: Collection[str]) -> dict[str, LeafRecord]:
        """Load records; logs and skips unreadable ones. Raises `ApiError` or `UnavailableError`."""
        if self._replicas == 1 and len(domains) > _FEW and (read := await self._read_all()) is not None:
            found, pacer = [], Pacer()
            for domain in domains:
                found.append(self._decoded(read.get(_subject(domain)), domain, decode_leaf))
                await pacer.give_way()
        else:
            found = await bounded_gather(self._load_leaf, domains)
        leaves = {leaf.domain: leaf for leaf in found if leaf is not None}
        if self._replicas > 1:
            lacking = await self._load_lacking([domain for domain in domains if domain not in leaves])
            self._lack(self._lacking.intersection(domains) | lacking.keys())
            leaves |= lacking
        # What a copy lacks does not count as stored: the next announcement stores it in all of them.
        self._stored = {domain: leaf for domain, leaf in leaves.items() if domain not in self._lacking}
        return leaves

    def _lack(self, domains: set[str]) -> None:
        self._lacking = domains
        if not domains:
            self._problems.end(_COPIES, f"all copies of {BUCKET} have the records of the fleet again")

    async def _load_leaf(self, domain: str) -> LeafRecord | None:
        return self._decoded(await self._leaders(_subject(domain)), domain, decode_leaf)

    async def _load_lacking(self, domains: Collection[str]) -> dict[str, LeafRecord]:
        by_subject = {_subject(domain): domain for domain in domains}
        read = await read_copies(self._nc, list(by_subject))
        if read:
            leader = (await self._js.api(f"STREAM.INFO.{BUCKET}")).get("cluster", {}).get("leader", "")
            self._problems.begin(
                _COPIES,
                f"{leader} lacks {len(read)} records of the fleet that another server of the hub has: "
                "if its disk fails, start it with an empty store",
                hub=True,
            )
        found = [self._decoded(data, by_subject[subject], decode_leaf) for subject, data in read.items()]
        return {leaf.domain: leaf for leaf in found if leaf is not None}

    async def load_noted(self, streams: Iterable[str]) -> dict[str, PurgeMarker]:
        """Load aggregates' marks. Raises `ApiError` or `UnavailableError`."""
        found = await bounded_gather(
            lambda name: self._load(_noted_subject(name), name, decode_noted), streams
        )
        return {marker.stream: marker for marker in found if marker is not None}

    async def let_in(self) -> frozenset[str] | None:
        """Load the admitted keys, None if never stored. Raises `ApiError` or `UnavailableError`."""
        data = await self._newest(_LET_IN)
        return None if data is None else frozenset(data.decode(errors="replace").split())

    async def save_let_in(self, keys: Iterable[str]) -> None:
        """Store the admitted keys. Raises `ApiError` or `UnavailableError`."""
        await self._put(_LET_IN, "\n".join(sorted(keys)).encode())

    async def save_aggregates(self, names: Iterable[str]) -> None:
        """Tell the jobs the names of all aggregates. Raises `ApiError` or `UnavailableError`."""
        known, names = await self._newest(_AGGREGATES) or b"", list(names)
        for gone in sorted(set(known.decode(errors="replace").split()) - set(names)):
            log.warning("aggregate not provided any more; what it holds is not read", stream=gone)
        if known.split() != [name.encode() for name in names]:
            await self._put(_AGGREGATES, "\n".join(names).encode())

    async def load_lake(self) -> bytes:
        """Load the lake's record, b"" if none. Raises `ApiError` or `UnavailableError`."""
        return await self._newest(_LAKE) or b""

    async def save_lake(self, data: bytes) -> None:
        """Store the lake's record. Raises `ApiError` or `UnavailableError`."""
        await self._put(_LAKE, data)

    async def save_audit(self, part: int, data: bytes) -> None:
        """Store an audit part. Raises `ApiError` or `UnavailableError`."""
        await self._put(_audit_subject(part), data)

    async def load_audit(
        self, decode: Callable[[bytes], AuditPart]
    ) -> AsyncIterator[tuple[AuditPart, bytes]]:
        """Yield readable audit parts. Raises `ApiError` or `UnavailableError`."""
        part, parts = 0, 1
        while part < parts:
            data = await self._newest(_audit_subject(part))
            decoded = self._decoded(data, f"audit {part}", decode)
            if decoded is None or data is None:
                return
            parts = decoded.parts
            yield decoded, data
            part += 1

    async def _put(self, subject: str, data: bytes) -> None:
        self._last = max(self._last, await self._js.publish(subject, data))

    async def _read_all(self) -> dict[str, bytes] | None:
        try:
            return await read_all(self._nc, await self._js.stream_info(BUCKET))
        except JetStreamError as error:
            log.info("reading records one by one", reason=str(error))
            return None

    async def _load(self, subject: str, what: str, decode: Callable[[bytes], Record]) -> Record | None:
        return self._decoded(await self._newest(subject), what, decode)

    async def _newest(self, subject: str) -> bytes | None:
        data = await self._leaders(subject)
        if data is not None or self._replicas == 1:
            return data
        return (await read_copies(self._nc, [subject])).get(subject)

    async def _leaders(self, subject: str) -> bytes | None:
        message = await self._js.get_message(BUCKET, last_by_subject=subject)
        return None if message is None else message.data

    def _decoded(self, data: bytes | None, what: str, decode: Callable[[bytes], Record]) -> Record | None:
        if not data:
            return None
        try:
            return decode(data)
        except ContractError as error:
            self._problems.begin(f"record of {what}", f"the hub's record of {what} cannot be read: {error}")
            return None


async def read_copies(nc: Client, subjects: list[str]) -> dict[str, bytes]:
    """Return these subjects from any replica, as a leader with a damaged block lacks messages
    (`findings/nats-damaged-block-is-not-fetched-from-replicas.sh`). Raises `UnavailableError`.
    """
    found: dict[str, bytes] = {}
    for start in range(0, len(subjects), _AT_ONCE):
        lacking = subjects[start : start + _AT_ONCE]
        for _ in range(_DRAWS):
            found |= await read_newest(nc, BUCKET, lacking)
            lacking = [subject for subject in lacking if subject not in found]
            if not lacking:
                break
    return found


def _subject(domain: str) -> str:
    return f"$KV.{FLEET_BUCKET}.{domain}"


def _audit_subject(part: int) -> str:
    return f"$KV.{FLEET_BUCKET}.audit.{part}"


def _noted_subject(stream: str) -> str:
    # A domain has no dot, so this cannot be one.
    return f"$KV.{FLEET_BUCKET}.noted.{stream}"


RESERVE: Final = 2**20
"""Bytes left free for the lease."""
_STREAM_FULL: Final = 10077
_CLEARED: Final = 0.005
_CLEARED_SECONDS: Final = 1.0
_HEAD_BYTES: Final = 512
"""A message's overhead in bytes."""


class BucketRoom:
    """Counts free bytes as if nothing were replaced, and looks again when short."""

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._left = 0

    async def take(self, subject: str, data: bytes) -> None:
        """Reserve space. Raises `ApiError` or `UnavailableError`."""
        size = len(subject) + len(data) + _HEAD_BYTES
        if self._left < size:
            info = await self._js.stream_info(BUCKET)
            self._left = int(info.config["max_bytes"]) - info.bytes - RESERVE
        if self._left < size:
            words = f"maximum bytes exceeded: the bucket {BUCKET} is full; forget leaves that are gone"
            raise ApiError(503, _STREAM_FULL, words, subject)
        self._left -= size


async def in_turn(store: Callable[[], Awaitable[PubAck]]) -> PubAck:
    """Store conditionally, retrying while the server clears an earlier write."""
    async for attempt in AsyncRetrying(
        retry=retry_if_exception(_is_in_flight),
        wait=wait_fixed(_CLEARED),
        stop=stop_after_delay(_CLEARED_SECONDS),
        reraise=True,
    ):
        with attempt:
            return await store()
    raise AssertionError


def _is_in_flight(error: BaseException) -> bool:
    return isinstance(error, ApiError) and error.err_code == WRITE_IN_FLIGHT
