"""Assembles a leaf's link."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import structs
from nats.aio.client import Client

from agent.base.clock import ClockReader
from agent.base.metrics import Metrics, own_version
from agent.base.wait import loop_time
from agent.config import Config
from agent.contract import Previous, hub_api, leaf_stream
from agent.jetstream import JetStream
from agent.leaf.acks import HubAckWaiters, HubCursorPoller
from agent.leaf.events import Events, LinkChanged, StreamFull, StreamSeen, StreamTrimmed
from agent.leaf.link.act import Trimmer
from agent.leaf.link.announcer import AnnouncedLeaf, Announcer
from agent.leaf.link.cause import LinkCause
from agent.leaf.link.command_mirror.controller import CommandMirror
from agent.leaf.link.command_mirror.local_consumers import ProgramPositions
from agent.leaf.link.command_mirror.rest import MirrorRest
from agent.leaf.link.controller import LinkController
from agent.leaf.link.guard import NewEpoch
from agent.leaf.link.observation import UplinkStatus
from agent.leaf.link.room import FULL, DiskQuota, TimeToLoss
from agent.leaf.link.status import ORDINARY, PATIENT, LinkStatus
from agent.leaf.link.uplink import UplinkMonitor
from agent.leaf.state_file import StateFile
from agent.server.health import ServerHealth
from agent.server.setup import identities

_UNKNOWN: Final = UplinkStatus(True, 0.0, "unknown")
"""Assumed up without system account: never pause on an unknown state."""

Service = Callable[[], Awaitable[Any]]


class LinkView:
    """Link and disk state by class, for the publish path; `LeafLink` updates it."""

    def __init__(self, config: Config, metrics: Metrics, health: ServerHealth, events: Events) -> None:
        self._domain, self.metrics, self.health, self.events = config.domain, metrics, health, events
        classes = self._classes = {cls.name: cls for cls in config.class_}
        embedded = config.nats.server == "embedded"
        self.time_to_loss = TimeToLoss(
            {cls.name: cls.max_bytes for cls in config.class_},
            config.nats.max_file_store if embedded else None,
        )
        self.disk_quota = DiskQuota(classes, self.time_to_loss.held, lambda: health.room)
        self.status = LinkStatus(config.domain, classes, metrics, events, self._short_of_room)

    def sentence(self, cls: str) -> str:
        """Describe a class's link."""
        return self.status.classes[cls].sentence

    def refusal(self, cls: str) -> str | None:
        """Return why a class's stream stores nothing, or None."""
        return self.health.refusal(leaf_stream(self._domain, cls)) or self.disk_quota.refusal(cls)

    def seen(self, seen: StreamSeen) -> None:
        """Note an inspected stream."""
        room = self.health.room
        free = None if room is None else max(0, room.free - room.reserve)
        self.time_to_loss.observe(seen.cls, seen.info, seen.confirmed, loop_time(), free)

    def full(self, full: StreamFull) -> None:
        """Note a message without space."""
        self.time_to_loss.refused(full.cls, full.size, loop_time())

    def trimmed(self, trimmed: StreamTrimmed) -> None:
        """Note a trim."""
        self.time_to_loss.trimmed(trimmed.cls)

    def held_back(self, cls: str) -> str | None:
        """Return why a class accepts nothing, or None."""
        if (why := self.time_to_loss.refusing(cls)) is not None:
            return why
        return FULL if self._classes[cls].discard == "new" and cls in self.time_to_loss.full else None

    def _short_of_room(self) -> bool:
        room = self.health.room
        return self.disk_quota.short or (room is not None and not room.enough)


class LeafLink:
    """The link of all classes over the current connection. `ledger` returns a class's counts.

    Without system account nothing is paused at a link loss.
    """

    def __init__(
        self,
        config: Config,
        run: str,
        state: StateFile,
        view: LinkView,
        trimmer: Trimmer,
        waits: HubAckWaiters,
        ledger: Callable[[str], Previous],
        states: Callable[[], Mapping[str, str]],
    ) -> None:
        self._config, self._run, self._state, self._view = config, run, state, view
        self._ledger, self._states, self._clock = ledger, states, ClockReader()
        self.status, self.time_to_loss = view.status, view.time_to_loss
        self._uplink: UplinkMonitor | None = None
        if (system_seed := identities(config).system) is not None:
            self._uplink = UplinkMonitor(
                config.nats.url,
                system_seed,
                config.domain,
                lambda: view.events.emit(LinkChanged()),
                view.status.count_sent,
            )
        self.controller = LinkController(
            config,
            state,
            view.metrics,
            view.status,
            trimmer,
            view.events,
            uplink=self._uplink_status,
            trouble=lambda: view.health.sentence,
        )
        self.cause = LinkCause(
            config, self._uplink_status, lambda: state.current.spread, self.controller.look
        )
        self._cursor = HubCursorPoller(
            config.domain, run, state, waits, self.controller.agreed_epoch, self.controller.announce_now
        )
        programs = ProgramPositions(config.state_dir / "command-places.json", config.domain)
        programs.load()
        self._commands = CommandMirror(
            config.domain,
            hub_api(tenant=config.link.tenant),
            state,
            programs,
            view.metrics,
            self.controller.announce_now,
            MirrorRest(
                config.domain,
                leaf_stream(config.domain, config.class_[0].name),
                config.link.rest_seconds(),
                self.controller.announce_now,
            ),
        )

    def services(self) -> dict[str, Service]:
        services: dict[str, Service] = {
            "link": self.controller.run,
            "cursor": self._cursor.run,
            "commands": self._commands.run,
        }
        if self._uplink is not None:
            services["events"] = self._uplink.run
            services["link cause"] = self.cause.run
        return services

    @contextlib.contextmanager
    def connected(self, nc: Client, js: JetStream) -> Iterator[None]:
        """Use this connection within the scope."""
        announcer = Announcer(
            nc,
            js,
            AnnouncedLeaf(
                domain=self._config.domain,
                run=self._run,
                versions={"agent": own_version()},
                every=self._config.link.announce_seconds,
                state=self._state,
                ledger=self._ledger,
                seconds_to_loss=self.time_to_loss.left,
                clock=lambda: str(self._clock.read()),
                is_idle=self.controller.idle.is_idle,
                states=self._states,
                clock_ahead=self._clock_ahead,
            ),
            self._commands,
        )
        with (
            self.controller.connected(js, announcer),
            self._cursor.connected(nc, js),
            self._commands.connected(nc, js),
        ):
            yield

    def _clock_ahead(self, seconds: float) -> None:
        self.status.clock_ahead = seconds
        self._view.metrics.clock_ahead.set(seconds)

    def show_unreachable(self) -> None:
        self.controller.show_unreachable()
        self._commands.show_unreachable()

    def epoch_begun(self, cls: str, epoch: NewEpoch) -> None:
        self._view.metrics.epochs.labels(cls, epoch.reason.value).inc()
        self.controller.epoch_begun(cls, epoch.reason)

    @property
    def uplink(self) -> UplinkStatus | None:
        """Return the server's hub connection, or None."""
        return None if self._uplink is None else self._uplink.status

    def row(self) -> Mapping[str, Any]:
        state, cause = self.status.state, self.cause.cause
        return {
            "linked": self.controller.answered,
            "state": state,
            "sentence": self.status.sentence,
            "sent_bytes": self.status.sent_bytes,
            "arrived_bytes": round(self.status.arrived_bytes),
            "cause": cause.sentence if cause is not None else None,
            "attention": state not in ORDINARY | PATIENT or (cause is not None and cause.person),
        }

    def class_row(self, cls: str) -> dict[str, Any]:
        """Return a class's row for `/status`."""
        link = self.status.classes[cls]
        return {
            "epoch": self._state.current.epochs.get(cls),
            "state": link.state,
            "sentence": link.sentence,
            "last": link.last,
            "confirmed": link.confirmed,
            "hub_stream": link.hub_stream,
            "in_flight": self.controller.in_flight(cls),
            "seconds_to_loss": self.time_to_loss.left(cls),
            "held_back": self._view.held_back(cls),
        }

    def mirror_rows(self) -> list[Mapping[str, Any]]:
        """Return the agent's mirrors, a row each."""
        return [self._commands.status()]

    def _uplink_status(self) -> UplinkStatus:
        status = self.uplink or _UNKNOWN
        if status.up:
            return status
        cause = "" if self.cause.cause is None else self.cause.cause.sentence
        return structs.replace(status, closed=self._view.health.closed, cause=cause)

    def changed(self, _changed: LinkChanged) -> None:
        self.controller.link_changed()
        self.cause.changed()
