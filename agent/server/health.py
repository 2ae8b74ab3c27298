"""Judges the local server's reliability in one sentence. Pure except logs.

On a full disk a published stream stays unwritable ("write error" in HEALTHZ) until a restart; sourced or
replicated streams shut JetStream down ("JetStream not enabled"). Remove the restarts when servers recover
themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final

import structlog
from msgspec import Struct

from agent.base.files import Room, is_there
from agent.base.logs import LogEdge
from agent.base.metrics import Metrics
from agent.base.nats_server import ServerError, check_version
from agent.base.storage import storage

_WRITE_ERROR: Final = "write error: "
_NOT_ENABLED: Final = "JetStream not enabled"
_FULL: Final = ("no space left on device", "disk quota exceeded")
_UNKNOWN: Final = float("nan")
_DEFAULT_NS: Final = 120 * 10**9
"""Default sync interval."""

MOVE: Final = "move it to a file system such as ext4, xfs or btrfs on a disk of this machine"

log = structlog.get_logger("server")


class TroubleKind(Enum):
    """The kind of fault."""

    WRITE = auto()
    """A stream is unwritable."""
    SHUT_DOWN = auto()
    """JetStream shut down."""
    LOW = auto()
    """The disk is nearly full."""
    OTHER = auto()
    """Another reported fault."""


class Trouble(Struct, frozen=True):
    """A fault that prevents storing."""

    kind: TroubleKind
    why: str
    streams: frozenset[str] = frozenset()
    """Affected streams; none for all."""

    @property
    def wants_room(self) -> bool:
        """Whether a restart helps only with free space."""
        return any(text in self.why.lower() for text in _FULL)

    @property
    def needs_start(self) -> bool:
        """Whether only a restart helps."""
        return self.kind in (TroubleKind.WRITE, TroubleKind.SHUT_DOWN)


def diagnose(healthz: Mapping[str, Any]) -> Trouble | None:
    """Return the fault in HEALTHZ, or None."""
    errors = healthz.get("errors") or []
    failed = [error for error in errors if _WRITE_ERROR in error.get("error", "")]
    if failed:
        # "write <path>: no space left on device": the stream's name says more than the path.
        why = failed[0]["error"].rpartition(_WRITE_ERROR)[2].rpartition(": ")[2]
        return Trouble(
            TroubleKind.WRITE, why, frozenset(error["stream"] for error in failed if error.get("stream"))
        )
    texts = [str(error.get("error", "")) for error in errors] or [str(healthz.get("error", ""))]
    if healthz.get("status_code", 200) < 400 or not any(texts):
        return None
    if any(_NOT_ENABLED in text for text in texts):
        return Trouble(TroubleKind.SHUT_DOWN, "it says " + repr(texts[0]))
    streams = frozenset(error["stream"] for error in errors if error.get("stream"))
    return Trouble(TroubleKind.OTHER, texts[0], streams)


def unsynced(varz: Mapping[str, Any]) -> str | None:
    """Return why acks do not mean synced, or None."""
    seconds = sync_seconds(varz)
    if seconds == 0:
        return None
    return (
        f"acknowledged is not synced: the server syncs its disk each {seconds:g} s, and a power cut loses"
        " what came since; set sync_interval: always in its jetstream block"
    )


def unkept(store: Path) -> str | None:
    """Return why a power cut takes the store despite syncs, or None."""
    if not is_there(store) or (problem := storage(store).problem) is None:
        return None
    return f"acknowledged is not kept: the store {store} is on {problem}; {MOVE}"


def sync_seconds(varz: Mapping[str, Any]) -> float:
    """Return the sync interval; 0 for before acks."""
    settings = (varz.get("jetstream") or {}).get("config") or {}
    return 0.0 if settings.get("sync_always") else (settings.get("sync_interval") or _DEFAULT_NS) / 1e9


class ServerHealth:
    """The local server's state, reported by its watch."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._version: str | None = None
        self._refusal: str | None = None
        self._refused = LogEdge(log, error=True)
        self._unhealthy = LogEdge(log, "the NATS server stores again", error=True)
        self._unsynced = LogEdge(log)
        self._trouble: tuple[Trouble, str] | None = None
        self.warning: str | None = "whether acknowledged means synced is not known: the server was not asked"
        """What an ack does not mean; None if synced."""
        self.is_synced: bool | None = None
        """Whether synced before acks, None if unknown."""
        self.room: Room | None = None
        """The store's disk space, if known."""
        self.answers = 0
        """Answers to the watch."""
        self.unstarted: str | None = None
        """Why the embedded server does not run, or None."""
        self.closed = ""
        """Why the link is closed on purpose, or ""."""
        self.devices: Mapping[str, Any] | None = None
        """State of MQTT devices, None without listener."""
        metrics.server_synced.set(_UNKNOWN)

    @property
    def sentence(self) -> str | None:
        """Return why the server is unusable, with remedy, or None."""
        return self._refusal or (self._trouble[1] if self._trouble is not None else None)

    def refusal(self, stream: str) -> str | None:
        """Return why this stream stores nothing."""
        if self._trouble is None or self._trouble[0].kind is TroubleKind.OTHER:
            return None
        trouble, sentence = self._trouble
        return sentence if not trouble.streams or stream in trouble.streams else None

    def admit(self, version: str) -> None:
        """Note a connection to this version. Raises `ServerError` if too old."""
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
        """Note a start, or its failure."""
        self.unstarted = None if why_not is None else f"the NATS server cannot be started: {why_not}"

    def found(self, trouble: Trouble | None, remedy: str = "") -> None:
        """Set the watch's fault and remedy."""
        self._metrics.server_trouble.set(trouble is not None)
        if trouble is None:
            self._trouble = None
            self._unhealthy.end()
        else:
            self._trouble = trouble, f"{_sentence(trouble)}; {remedy}"
            self._unhealthy.begin("NATS server unhealthy", state=self._trouble[1])

    def synced(self, warning: str | None, known: bool = True) -> None:
        """Set whether acks mean synced, with a warning."""
        self.is_synced = warning is None if known else None
        self._metrics.server_synced.set(_UNKNOWN if self.is_synced is None else self.is_synced)
        self.warning = warning
        if warning is None:
            self._unsynced.end()
        else:
            self._unsynced.begin("NATS server does not sync", state=warning)

    def _stores(self) -> bool:
        reports_else = self._trouble is None or self._trouble[0].kind is TroubleKind.OTHER
        return self._refusal is None and self.unstarted is None and reports_else

    def status(self) -> dict[str, Any]:
        """Return the state for `/status`; `synced` null if unknown."""
        return {
            "version": self._version,
            "state": self.sentence or self.unstarted or "nothing is known to be wrong",
            "stores": self._stores(),
            "synced": self.is_synced,
            "warning": self.warning,
            **({} if self.devices is None else {"devices": self.devices}),
        }


def _sentence(trouble: Trouble) -> str:
    streams = ", ".join(sorted(trouble.streams)) or "its streams"
    match trouble.kind:
        case TroubleKind.WRITE:
            return f"the NATS server has stopped writing to {streams}: {trouble.why}"
        case TroubleKind.SHUT_DOWN:
            return f"the NATS server's JetStream has shut itself down: {trouble.why}"
        case TroubleKind.LOW:
            return trouble.why
        case TroubleKind.OTHER:
            return f"the NATS server says of itself: {trouble.why}"
