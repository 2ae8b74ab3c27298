"""What is said and done about a declared link. Pure: no clock, no connection.

Repairs are made only where they can't lose anything: a source is removed and added again, which makes its
server ask the origin at once (left alone after the hub's server was killed: 37 s; so: 0.2 s). A mirror can't
be changed; it is made anew only where it holds nothing, or where the configuration says `recreate = true`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from agent.config.mirrors import Declared, ResolvedOrigin, key_of
from agent.mirrors.observation import STALLED, CopyStatus, LocalStream, RemoteStream

ALIVE: Final = 3.0
"""Seconds without a sign of life after which a link is not well; a heartbeat comes each second."""
GRACE: Final = 1.0
BY_ITSELF: Final = 60.0
"""Seconds within which a server that is left alone has asked the origin again (seen: 12 to 40 s)."""
MAKE_AFTER: Final = 5.0
"""How long a new mirror waits for its origin to answer, for one that is made before takes longer."""
LONGEST_WAIT: Final = 60.0


class MirrorState(StrEnum):
    """How a declared link is."""

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


@dataclass(frozen=True, slots=True)
class MirrorMemory:
    """Of one link, in monotonic seconds: since when the origin answers while the link is not alive (None: it
    is not so), how often it was nudged since, and when."""

    unheard_since: float | None = None
    nudges: int = 0
    nudged_at: float = 0.0


@dataclass(frozen=True, slots=True)
class MirrorVerdict:
    """The state of a link and its one sentence, the messages that are missing here (None: nobody knows), and
    whether to remove and add it again."""

    state: MirrorState
    sentence: str
    lag: int | None = None
    nudge: bool = False

    @property
    def up(self) -> bool:
        """Whether messages come in."""
        return self.state in (MirrorState.FLOWING, MirrorState.LAGGING, MirrorState.UNKNOWN)


StreamAction = Literal["make", "update", "recreate"]


def decide_stream(
    one: Declared, here: LocalStream | None, there: RemoteStream, waited: float
) -> StreamAction | None:
    """What to do about the stream itself; `there` is the origin of a mirror, `waited` for how many seconds
    the stream has been missing here."""
    if here is None:
        ready = one.kind == "source" or there.kind != "silent" or waited >= MAKE_AFTER
        return "make" if ready else None
    if here.kind != one.kind:
        return None
    if one.kind == "mirror" and (_other_mirror(one, here) or _origin_is_new(here, there)):
        may = there.kind == "answers" and (one.recreate or here.messages == 0)
        return "recreate" if may else None
    return "update" if _differs(one, here, there) else None


def decide_link(
    one: Declared,
    origin: ResolvedOrigin,
    here: LocalStream | None,
    there: RemoteStream,
    memory: MirrorMemory,
    now: float,
) -> MirrorVerdict:
    """The state of one link of a stream."""
    if here is None:
        waiting = f"{origin.place} does not answer: {there.problem}" if there.problem else "it is being made"
        return MirrorVerdict(MirrorState.MAKING, f"there is no stream {one.name} here yet; {waiting}")
    if here.kind != one.kind:
        return MirrorVerdict(
            MirrorState.FOREIGN,
            f"a stream {one.name} is here that was not made as this {one.kind}: it is left as it is; delete "
            "it, or give the link another name",
        )
    if one.kind == "mirror" and _other_mirror(one, here):
        return MirrorVerdict(
            MirrorState.FOREIGN,
            f"the mirror {one.name} was made with another origin, filter, start or transforms, and a mirror "
            "can't be changed; set recreate = true to have it deleted and made anew, or declare it under "
            "another name",
        )
    entry = here.entries.get(origin.key)
    if entry is None:
        return MirrorVerdict(MirrorState.MAKING, f"{origin.place} is being added")
    if one.kind == "mirror" and _origin_is_new(here, there):
        return MirrorVerdict(
            MirrorState.RECREATED,
            f"{origin.place} was deleted and made again or put back from an older copy, so this mirror takes "
            f"nothing more up to its own last message ({entry.seq}); it holds {here.messages} messages that "
            "may be nowhere else: save them if they matter, then delete the stream here or set "
            "recreate = true",
        )
    return _flow(origin, entry, there, memory, now)


def _flow(
    origin: ResolvedOrigin, entry: CopyStatus, there: RemoteStream, memory: MirrorMemory, now: float
) -> MirrorVerdict:
    alive = entry.active is not None and entry.active < ALIVE
    lag = missing_messages(origin, entry, there)
    if there.kind == "absent":
        return MirrorVerdict(MirrorState.ABSENT, f"{origin.place} does not exist; make it there")
    if alive and there.kind == "answers" and there.last < entry.seq:
        return MirrorVerdict(
            MirrorState.RECREATED,
            f"{origin.place} ends at {there.last}, but its messages up to {entry.seq} are here: it was made "
            "again or put back from an older copy; where it was put back, what it stores up to "
            f"{entry.seq} is not taken over: declare it under another name of this stream",
        )
    if entry.err_code == STALLED:
        return MirrorVerdict(
            MirrorState.REFUSED,
            f"the flow has stopped: the acknowledgements of the flow do not reach {origin.place}; allow "
            f"$JS.FC.{origin.stream}.> to it",
            lag,
        )
    if alive and entry.error:
        return MirrorVerdict(MirrorState.REFUSED, f"{origin.place} refuses: {entry.error}", lag)
    if alive:
        return _alive(origin, there, lag)
    if there.kind != "answers":
        return MirrorVerdict(MirrorState.DOWN, f"{origin.place} does not answer: {there.problem}")
    return _unheard(origin, entry, lag, memory, now)


def _alive(origin: ResolvedOrigin, there: RemoteStream, lag: int | None) -> MirrorVerdict:
    if there.kind != "answers":
        return MirrorVerdict(
            MirrorState.UNKNOWN,
            f"messages of {origin.place} come in, but how many are missing is not known: {there.problem}",
        )
    if lag:
        most = "" if there.exact else "at most "
        return MirrorVerdict(
            MirrorState.LAGGING, f"{most}{lag} messages of {origin.place} are not here yet", lag
        )
    return MirrorVerdict(MirrorState.FLOWING, f"all messages of {origin.place} are here", lag)


def _unheard(
    origin: ResolvedOrigin, entry: CopyStatus, lag: int | None, memory: MirrorMemory, now: float
) -> MirrorVerdict:
    since = now if memory.unheard_since is None else memory.unheard_since
    words = f"{origin.place} answers, but the link was not heard from yet; its server asks again by itself"
    if now - since >= BY_ITSELF:
        words = (
            f"{origin.place} answers, but nothing of it has come in for {int((now - since) / 60)} min; "
            f"one of these is not allowed: {', '.join(needed_subjects(origin))}"
        )
    told = f" (the server was last told: {entry.error})" if entry.error else ""
    return MirrorVerdict(MirrorState.WAITING, words + told, lag, nudge=_nudge_is_due(memory, since, now))


def _nudge_is_due(memory: MirrorMemory, since: float, now: float) -> bool:
    if memory.nudges == 0:
        return now - since >= GRACE
    return now - memory.nudged_at >= min(LONGEST_WAIT, 2.0**memory.nudges)


def remember(memory: MirrorMemory, verdict: MirrorVerdict, now: float) -> MirrorMemory:
    """What the next decision has to know."""
    if verdict.state is not MirrorState.WAITING:
        return MirrorMemory()
    since = now if memory.unheard_since is None else memory.unheard_since
    if verdict.nudge:
        return MirrorMemory(since, memory.nudges + 1, now)
    return MirrorMemory(since, memory.nudges, memory.nudged_at)


def missing_messages(origin: ResolvedOrigin, entry: CopyStatus, there: RemoteStream) -> int | None:
    """How many messages of the origin are not here, by what the origin itself holds; at most, where not every
    sequence is a message that the link takes. None where the origin does not answer."""
    if there.kind != "answers":
        return None
    begin = max(entry.seq, there.first - 1, origin.start_sequence - 1, 0)
    return max(0, there.newest - begin)


def needed_subjects(origin: ResolvedOrigin) -> list[str]:
    """The subjects that a link needs: requests and flow control towards the origin, messages back."""
    api = origin.api or "$JS.API"
    return [
        f"{api}.CONSUMER.CREATE.{origin.stream}",
        f"{api}.CONSUMER.CREATE.{origin.stream}.>",
        f"{api}.STREAM.INFO.{origin.stream}",
        f"$JS.FC.{origin.stream}.>",
        f"{origin.deliver or '$JS.*'}.> (from the origin)",
        "$JSC.R.* (both ways)",
    ]


def _other_mirror(one: Declared, here: LocalStream) -> bool:
    have, want = here.config.get("mirror") or {}, one.origins[0].entry()
    starts: list[Callable[[dict[str, object]], object]] = [
        lambda row: row.get("opt_start_seq"),
        lambda row: row.get("opt_start_time"),
        lambda row: (row.get("external") or {}).get("deliver") or "",  # type: ignore[attr-defined]
    ]
    return key_of(have) != key_of(want) or any(start(have) != start(want) for start in starts)


def _origin_is_new(here: LocalStream, there: RemoteStream) -> bool:
    if there.kind != "answers":
        return False
    other = bool(here.origin_created) and here.origin_created != there.created
    return other or there.last < here.last


def _differs(one: Declared, here: LocalStream, there: RemoteStream) -> bool:
    want = one.stream()
    if any(here.config.get(name) != want[name] for name in ("max_bytes", "discard")):
        return True
    if one.kind == "mirror":
        return there.kind == "answers" and not here.origin_created
    return {key_of(row) for row in here.config.get("sources") or []} != {o.key for o in one.origins}
