"""Whether the local server can be relied on, as one sentence. Pure but for the log.

On a full disk nats-server behaves in two ways. Where a client publishes, the server goes on answering every
request, but stores nothing in that stream and refuses to purge it ("write error" in HEALTHZ; publishing is
not answered at all), also when there is room again, until it is restarted; a reload does not help. Where a
stream is filled by sources or is replicated, JetStream shuts itself down ("JetStream not enabled"). The
restarts may go once a server stores again by itself.
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
"""At which a server syncs by default."""

MOVE: Final = "move it to a file system such as ext4, xfs or btrfs on a disk of this machine"

log = structlog.get_logger("server")


class TroubleKind(Enum):
    """What is wrong."""

    WRITE = auto()
    """A stream is not written any more."""
    SHUT_DOWN = auto()
    """JetStream shut itself down."""
    LOW = auto()
    """The disk has hardly any room left."""
    OTHER = auto()
    """The server reports something else."""


class Trouble(Struct, frozen=True):
    """A fault that keeps the server from storing."""

    kind: TroubleKind
    why: str
    streams: frozenset[str] = frozenset()
    """The streams that it names, none for all."""

    @property
    def wants_room(self) -> bool:
        """Whether the disk is full, so that a restart helps only once there is room."""
        return any(text in self.why.lower() for text in _FULL)

    @property
    def needs_start(self) -> bool:
        """Whether only a restart of the server ends it."""
        return self.kind in (TroubleKind.WRITE, TroubleKind.SHUT_DOWN)


def diagnose(healthz: Mapping[str, Any]) -> Trouble | None:
    """The fault in the details of HEALTHZ, None if all is well."""
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
    """Why an acknowledgement of this server does not mean synced; None if it does."""
    seconds = sync_seconds(varz)
    if seconds == 0:
        return None
    return (
        f"acknowledged is not synced: the server syncs its disk each {seconds:g} s, and a power cut loses"
        " what came since; set sync_interval: always in its jetstream block"
    )


def unkept(store: Path) -> str | None:
    """Why a power cut takes a store whatever its server syncs; None if it does not, or the store is not on
    this machine."""
    if not is_there(store) or (problem := storage(store).problem) is None:
        return None
    return f"acknowledged is not kept: the store {store} is on {problem}; {MOVE}"


def sync_seconds(varz: Mapping[str, Any]) -> float:
    """How often a server syncs its disk; 0: before it acknowledges."""
    settings = (varz.get("jetstream") or {}).get("config") or {}
    return 0.0 if settings.get("sync_always") else (settings.get("sync_interval") or _DEFAULT_NS) / 1e9


class ServerHealth:
    """What is known of the local server: its watch reports here, everybody else reads `sentence`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._version: str | None = None
        self._refusal: str | None = None
        self._refused = LogEdge(log, error=True)
        self._unhealthy = LogEdge(log, "the NATS server stores again", error=True)
        self._unsynced = LogEdge(log)
        self._trouble: tuple[Trouble, str] | None = None
        self.warning: str | None = "whether acknowledged means synced is not known: the server was not asked"
        """What an acknowledgement of this server does not mean; None where it means synced."""
        self.is_synced: bool | None = None
        """Whether the server syncs before it acknowledges, None where that is not known."""
        self.room: Room | None = None
        """What the disk of the server's store has left, as far as that is known."""
        self.answers = 0
        """How often the server has answered its watch."""
        self.unstarted: str | None = None
        """Why a server of our own does not run, None while it does."""
        self.closed = ""
        """Why the link is closed on purpose, "" while it is open."""
        self.devices: Mapping[str, Any] | None = None
        """What is known of MQTT devices, None where the server does not listen for them."""
        metrics.server_synced.set(_UNKNOWN)

    @property
    def sentence(self) -> str | None:
        """Why the server cannot be used, and the remedy; None while no reason is known."""
        return self._refusal or (self._trouble[1] if self._trouble is not None else None)

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
        """The embedded server was started, or could not be for this reason."""
        self.unstarted = None if why_not is None else f"the NATS server cannot be started: {why_not}"

    def found(self, trouble: Trouble | None, remedy: str = "") -> None:
        """Note the fault that the watch saw, None for none, and its remedy."""
        self._metrics.server_trouble.set(trouble is not None)
        if trouble is None:
            self._trouble = None
            self._unhealthy.end()
        else:
            self._trouble = trouble, f"{_sentence(trouble)}; {remedy}"
            self._unhealthy.begin("NATS server unhealthy", state=self._trouble[1])

    def synced(self, warning: str | None, known: bool = True) -> None:
        """Note whether the server syncs before it acknowledges; a warning says why not, or why that is
        unknown."""
        self.is_synced = warning is None if known else None
        self._metrics.server_synced.set(_UNKNOWN if self.is_synced is None else self.is_synced)
        self.warning = warning
        if warning is None:
            self._unsynced.end()
        else:
            self._unsynced.begin("NATS server does not sync", state=warning)

    def _stores(self) -> bool:
        """Whether no reason is known why the server would not store."""
        reports_else = self._trouble is None or self._trouble[0].kind is TroubleKind.OTHER
        return self._refusal is None and self.unstarted is None and reports_else

    def status(self) -> dict[str, Any]:
        """What `/status` shows; `synced` is null where it is not known."""
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
