"""Decides a declared link's state and repair. Pure.

Repairs never lose data: a readded source asks its origin at once (0.2 s instead of 37 s). A mirror is
recreated only if empty, or with `recreate = true`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, Literal

from msgspec import Struct

from agent.config.mirrors import Declared, ResolvedOrigin, key_of
from agent.jetstream.info import STALLED, CopyStatus
from agent.mirrors.observation import LocalStream, RemoteStream

ALIVE: Final = 3.0
"""Seconds of silence before a link is faulty; heartbeats come each second."""
GRACE: Final = 1.0
BY_ITSELF: Final = 60.0
"""Seconds until a server retries an origin (12 to 40 s seen)."""
MAKE_AFTER: Final = 5.0
"""Wait for an origin before a mirror's creation, which otherwise takes longer."""
LONGEST_WAIT: Final = 60.0


class MirrorState(StrEnum):
    FLOWING = "flowing"
    LAGGING = "lagging"
    UNKNOWN = "unknown"
    WAITING = "waiting"
    DOWN = "down"
    ABSENT = "absent"
    RECREATED = "recreated"
    REFUSED = "refused"
    FOREIGN = "foreign"
    MAKING = "making"
    AWAY = "away"


class MirrorMemory(Struct, frozen=True):
    """State between verdicts; monotonic seconds."""

    unheard_since: float | None = None
    """Since when the origin answers but the link is dead."""
    nudges: int = 0
    """Nudges since then."""
    nudged_at: float = 0.0


class MirrorVerdict(Struct, frozen=True):
    state: MirrorState
    sentence: str
    lag: int | None = None
    """Missing messages, None if unknown."""
    nudge: bool = False
    """Whether to readd the link."""

    @property
    def up(self) -> bool:
        """Whether messages arrive."""
        return self.state in (MirrorState.FLOWING, MirrorState.LAGGING, MirrorState.UNKNOWN)


StreamAction = Literal["make", "update", "recreate"]


def decide_stream(
    copy: Declared, local: LocalStream | None, remote: RemoteStream, waited: float
) -> StreamAction | None:
    """Return the stream's action; `remote` is the first origin, `waited` seconds since missing."""
    if local is None:
        ready = copy.kind == "source" or remote.kind != "silent" or waited >= MAKE_AFTER
        return "make" if ready else None
    if local.kind != copy.kind:
        return None
    if copy.kind == "mirror" and (_other_mirror(copy, local) or _origin_is_new(local, remote)):
        is_safe = remote.kind == "answers" and (copy.recreate or local.messages == 0)
        return "recreate" if is_safe else None
    return "update" if _differs(copy, local, remote) else None


def decide_link(
    copy: Declared,
    origin: ResolvedOrigin,
    local: LocalStream | None,
    remote: RemoteStream,
    memory: MirrorMemory,
    now: float,
) -> MirrorVerdict:
    if local is None:
        waiting = (
            f"{origin.place} does not answer: {remote.problem}" if remote.problem else "it is being created"
        )
        return MirrorVerdict(MirrorState.MAKING, f"there is no stream {copy.name} here yet; {waiting}")
    if local.kind != copy.kind:
        return MirrorVerdict(
            MirrorState.FOREIGN,
            f"a stream {copy.name} is here that was not created as this {copy.kind}: it is not changed; "
            "delete it, or give the link another name",
        )
    if copy.kind == "mirror" and _other_mirror(copy, local):
        return MirrorVerdict(
            MirrorState.FOREIGN,
            f"the mirror {copy.name} was created with another origin, filter, start or transforms, and a "
            "mirror can't be changed; set recreate = true to have it deleted and recreated, or declare it "
            "under another name",
        )
    entry = local.entries.get(origin.key)
    if entry is None:
        return MirrorVerdict(MirrorState.MAKING, f"{origin.place} is being added")
    if copy.kind == "mirror" and _origin_is_new(local, remote):
        return MirrorVerdict(
            MirrorState.RECREATED,
            f"{origin.place} was recreated or restored from a backup, so this mirror takes "
            f"nothing more up to its own last message ({entry.seq}); it holds {local.messages} messages that "
            "may be nowhere else: save them if they matter, then delete the stream here or set "
            "recreate = true",
        )
    return _flow(origin, entry, remote, memory, now)


def _flow(
    origin: ResolvedOrigin, entry: CopyStatus, remote: RemoteStream, memory: MirrorMemory, now: float
) -> MirrorVerdict:
    alive = entry.alive(ALIVE)
    lag = missing_messages(origin, entry, remote)
    if remote.kind == "absent":
        return MirrorVerdict(MirrorState.ABSENT, f"{origin.place} does not exist; create it there")
    if alive and remote.kind == "answers" and remote.last < entry.seq:
        return MirrorVerdict(
            MirrorState.RECREATED,
            f"{origin.place} ends at {remote.last}, but its messages up to {entry.seq} are here: it was "
            "recreated or restored from a backup; if it was restored, what it stores up to "
            f"{entry.seq} is not copied: declare it under another name of this stream",
        )
    if entry.error_code == STALLED:
        return MirrorVerdict(
            MirrorState.REFUSED,
            f"the flow has stopped: the acknowledgements of the flow do not reach {origin.place}; allow "
            f"$JS.FC.{origin.stream}.> to it",
            lag,
        )
    if alive and entry.error:
        return MirrorVerdict(MirrorState.REFUSED, f"{origin.place} refuses: {entry.error}", lag)
    if alive:
        return _alive(origin, remote, lag)
    if remote.kind != "answers":
        return MirrorVerdict(MirrorState.DOWN, f"{origin.place} does not answer: {remote.problem}")
    return _unheard(origin, entry, lag, memory, now)


def _alive(origin: ResolvedOrigin, remote: RemoteStream, lag: int | None) -> MirrorVerdict:
    if remote.kind != "answers":
        return MirrorVerdict(
            MirrorState.UNKNOWN,
            f"messages of {origin.place} come in, but how many are missing is not known: {remote.problem}",
        )
    if lag:
        most = "" if remote.exact else "at most "
        return MirrorVerdict(
            MirrorState.LAGGING, f"{most}{lag} messages of {origin.place} are not here yet", lag
        )
    return MirrorVerdict(MirrorState.FLOWING, f"all messages of {origin.place} are here", lag)


def _unheard(
    origin: ResolvedOrigin, entry: CopyStatus, lag: int | None, memory: MirrorMemory, now: float
) -> MirrorVerdict:
    since = now if memory.unheard_since is None else memory.unheard_since
    sentence = f"{origin.place} answers, but the link was not heard from yet; its server asks again by itself"
    if now - since >= BY_ITSELF:
        sentence = (
            f"{origin.place} answers, but nothing of it has come in for {int((now - since) / 60)} min; "
            f"one of these is not allowed: {', '.join(needed_subjects(origin))}"
        )
    last_error = f" (the server's last error: {entry.error})" if entry.error else ""
    return MirrorVerdict(
        MirrorState.WAITING, sentence + last_error, lag, nudge=_nudge_is_due(memory, since, now)
    )


def _nudge_is_due(memory: MirrorMemory, since: float, now: float) -> bool:
    if memory.nudges == 0:
        return now - since >= GRACE
    return now - memory.nudged_at >= min(LONGEST_WAIT, 2.0**memory.nudges)


def remember(memory: MirrorMemory, verdict: MirrorVerdict, now: float) -> MirrorMemory:
    """Return the state for the next verdict."""
    if verdict.state is not MirrorState.WAITING:
        return MirrorMemory()
    since = now if memory.unheard_since is None else memory.unheard_since
    if verdict.nudge:
        return MirrorMemory(since, memory.nudges + 1, now)
    return MirrorMemory(since, memory.nudges, memory.nudged_at)


def missing_messages(origin: ResolvedOrigin, entry: CopyStatus, remote: RemoteStream) -> int | None:
    """Return an upper bound of messages missing here, None without the origin's answer."""
    if remote.kind != "answers":
        return None
    begin = max(entry.seq, remote.first - 1, origin.start_sequence - 1, 0)
    return max(0, remote.newest - begin)


def needed_subjects(origin: ResolvedOrigin) -> list[str]:
    """Return a link's subjects: requests and flow control out, messages in."""
    api = origin.api or "$JS.API"
    return [
        f"{api}.CONSUMER.CREATE.{origin.stream}",
        f"{api}.CONSUMER.CREATE.{origin.stream}.>",
        f"{api}.STREAM.INFO.{origin.stream}",
        f"$JS.FC.{origin.stream}.>",
        f"{origin.deliver or '$JS.*'}.> (from the origin)",
        "$JSC.R.> (both ways)",
    ]


def is_mirror_of(copy: Declared, local: LocalStream) -> bool:
    """Tell whether a stream was created as this mirror."""
    return local.kind == copy.kind == "mirror" and not _other_mirror(copy, local)


def _other_mirror(copy: Declared, local: LocalStream) -> bool:
    have, want = local.config.get("mirror") or {}, copy.origins[0].entry()
    starts: list[Callable[[dict[str, object]], object]] = [
        lambda row: row.get("opt_start_seq"),
        lambda row: row.get("opt_start_time"),
        lambda row: (row.get("external") or {}).get("deliver") or "",  # type: ignore[attr-defined]
    ]
    return key_of(have) != key_of(want) or any(start(have) != start(want) for start in starts)


def _origin_is_new(local: LocalStream, remote: RemoteStream) -> bool:
    if remote.kind != "answers":
        return False
    other = bool(local.origin_created) and local.origin_created != remote.created
    return other or remote.last < local.last


def _differs(copy: Declared, local: LocalStream, remote: RemoteStream) -> bool:
    want = copy.stream()
    if any(local.config.get(name) != want[name] for name in ("max_bytes", "discard")):
        return True
    if copy.kind == "mirror":
        return remote.kind == "answers" and not local.origin_created
    return {key_of(row) for row in local.config.get("sources") or []} != {o.key for o in copy.origins}
