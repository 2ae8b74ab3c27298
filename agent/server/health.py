"""Whether the local server can be relied on, as one sentence. Pure but for the log: asks nothing and starts
nothing.

How a full disk shows was seen on nats-server 2.15.1. Where a client publishes, the server goes on answering
every question, but stores nothing in that stream and refuses to purge it ("write error" in HEALTHZ;
publishing is not answered at all), also when there is room again, until it is started anew; a reload does not
help. Where a stream is filled by sources or is replicated, JetStream shuts itself down ("JetStream not
enabled").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import structlog

from agent.base.files import Room
from agent.base.log_edges import LogEdge
from agent.base.metrics import Metrics
from agent.base.nats_server_version import ServerError, check_version

_WRITE_ERROR: Final = "write error: "
_NOT_ENABLED: Final = "JetStream not enabled"
_FULL: Final = ("no space left on device", "disk quota exceeded")
_UNKNOWN: Final = float("nan")

log = structlog.get_logger("server")


class TroubleKind(Enum):
    """What is wrong: a stream that is not written any more, JetStream that shut itself down, a disk with
    hardly any room left, or something else that the server says of itself."""

    WRITE = auto()
    SHUT_DOWN = auto()
    LOW = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Trouble:
    """A fault that keeps the server from storing; `streams` are those that it names, none for all."""

    kind: TroubleKind
    why: str
    streams: frozenset[str] = frozenset()

    @property
    def wants_room(self) -> bool:
        """Whether it comes of a full disk, so that a new start helps only once there is room."""
        return any(one in self.why.lower() for one in _FULL)

    @property
    def needs_start(self) -> bool:
        """Whether only a new start of the server ends it."""
        return self.kind in (TroubleKind.WRITE, TroubleKind.SHUT_DOWN)


def diagnose(healthz: Mapping[str, Any]) -> Trouble | None:
    """What HEALTHZ, asked for details, tells: None where all is well."""
    errors = healthz.get("errors") or []
    written = [one for one in errors if _WRITE_ERROR in one.get("error", "")]
    if written:
        # "write <path>: no space left on device": the path says nothing that the stream's name does not.
        why = written[0]["error"].rpartition(_WRITE_ERROR)[2].rpartition(": ")[2]
        return Trouble(
            TroubleKind.WRITE, why, frozenset(one["stream"] for one in written if one.get("stream"))
        )
    texts = [str(one.get("error", "")) for one in errors] or [str(healthz.get("error", ""))]
    if healthz.get("status_code", 200) < 400 or not any(texts):
        return None
    if any(_NOT_ENABLED in text for text in texts):
        return Trouble(TroubleKind.SHUT_DOWN, "it says " + repr(texts[0]))
    streams = frozenset(one["stream"] for one in errors if one.get("stream"))
    return Trouble(TroubleKind.OTHER, texts[0], streams)


def unsynced(varz: Mapping[str, Any]) -> str | None:
    """Why an acknowledgement of this server does not mean synced; None where it does."""
    settings = (varz.get("jetstream") or {}).get("config") or {}
    if settings.get("sync_always"):
        return None
    seconds = settings.get("sync_interval", 0) / 1e9
    return (
        f"acknowledged is not synced: the server syncs its disk each {seconds:g} s, and a power cut loses"
        " what came since; set sync_interval: always in its jetstream block"
    )


class ServerHealth:
    """What is known of the local server; who looks tells it here, who needs it reads `sentence`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._version: str | None = None
        self._refusal: str | None = None
        self._refused = LogEdge(log, error=True)
        self._unhealthy = LogEdge(log, "the NATS server stores again", error=True)
        self._unsynced = LogEdge(log)
        self._trouble: tuple[Trouble, str] | None = None
        self._warning: str | None = "whether acknowledged means synced is not known: the server was not asked"
        self._synced: bool | None = None
        self.room: Room | None = None
        """What the disk of the server's store has left, as far as that is known."""
        self.answers = 0
        """How often the server has answered a look at it."""
        self.unstarted: str | None = None
        """Why a server of our own does not run, None while it does."""
        self.closed = ""
        """Why the link is closed on purpose, "" while it is not."""
        metrics.server_synced.set(_UNKNOWN)

    @property
    def sentence(self) -> str | None:
        """What keeps the server from being used, and what comes of it; None while nothing is known to."""
        return self._refusal or (self._trouble[1] if self._trouble is not None else None)

    @property
    def warning(self) -> str | None:
        """What an acknowledgement of this server does not mean; None where it means synced."""
        return self._warning

    @property
    def is_synced(self) -> bool | None:
        """Whether the server syncs before it acknowledges, None where that is not known."""
        return self._synced

    def refusal(self, stream: str) -> str | None:
        """Why this stream stores nothing now."""
        if self._trouble is None or self._trouble[0].kind is TroubleKind.OTHER:
            return None
        trouble, sentence = self._trouble
        return sentence if not trouble.streams or stream in trouble.streams else None

    def admit(self, version: str) -> None:
        """A connection was made to a server of this version. Raises `ServerError` for one that is too old."""
        self._version = version
        try:
            check_version(version, "the server there")
        except ServerError as error:
            self._refusal = str(error)
            self._refused.begin("NATS server refused", reason=self._refusal)
            raise
        self._refusal = None
        self._refused.end()

    def started(self, why_not: str | None) -> None:
        """Our own server was started, or was not, for this reason."""
        self.unstarted = None if why_not is None else f"the NATS server cannot be started: {why_not}"

    def found(self, trouble: Trouble | None, remedy: str = "") -> None:
        """What the last look showed, and what is done about it or has to be."""
        self._metrics.server_trouble.set(trouble is not None)
        if trouble is None:
            self._trouble = None
            self._unhealthy.end()
        else:
            self._trouble = trouble, f"{_sentence(trouble)}; {remedy}"
            self._unhealthy.begin("NATS server unhealthy", state=self._trouble[1])

    def synced(self, warning: str | None, known: bool = True) -> None:
        """Whether the server syncs before it acknowledges; a warning says why not, or why that is not
        known."""
        self._synced = warning is None if known else None
        self._metrics.server_synced.set(_UNKNOWN if self._synced is None else self._synced)
        self._warning = warning
        if warning is None:
            self._unsynced.end()
        else:
            self._unsynced.begin("NATS server does not sync", state=warning)

    def status(self) -> dict[str, Any]:
        """What `/status` shows; `synced` is null where it is not known."""
        return {
            "version": self._version,
            "state": self.sentence or self.unstarted or "nothing is known to be wrong",
            "synced": self._synced,
            "warning": self._warning,
        }


def _sentence(trouble: Trouble) -> str:
    match trouble.kind:
        case TroubleKind.WRITE:
            return f"the NATS server has stopped writing to {_listed(trouble.streams)}: {trouble.why}"
        case TroubleKind.SHUT_DOWN:
            return f"the NATS server's JetStream has shut itself down: {trouble.why}"
        case TroubleKind.LOW:
            return trouble.why
        case TroubleKind.OTHER:
            return f"the NATS server says of itself: {trouble.why}"


def _listed(streams: Iterable[str]) -> str:
    return ", ".join(sorted(streams)) or "its streams"
