"""Runs one agent process: state, server, signals and the role's parts."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import structlog
import uvloop

from agent.base.listen_sockets import LISTEN_SOCKETS
from agent.base.machine import InUseError, notifier, only_one
from agent.base.metrics import Metrics
from agent.base.nats_server import RenderError
from agent.base.storage import storage
from agent.base.supervisor import keep_serving
from agent.config import Config, listen_address
from agent.config.values import Windows
from agent.contract import Exit
from agent.leaf import state_file
from agent.leaf.intake import Input
from agent.leaf.link.gate import LinkGate
from agent.leaf.link.observation import UplinkStatus
from agent.leaf.state_file import OtherDomainError, StateError, StateFile
from agent.process.admin_server import AdminServer
from agent.process.certificates import CertificateWatch
from agent.process.own_server import begin_server, server_watch
from agent.process.reload import KEPT_SECONDS, Applied, Files, Reloader
from agent.process.watchdog import ServerSilence, Vitals, Worker
from agent.server.health import MOVE, ServerHealth
from agent.server.process import EmbeddedServer
from agent.server.setup import server_config

if TYPE_CHECKING:
    from agent.hub.web import FleetPages
    from agent.server.resume.hub import HubRelay
    from agent.server.resume.leaf import LeafRelay

_YOUNG_OBJECTS = 5_000
"""New objects between collections; Python's 700 cost 4 to 8 % of CPU at full load."""
_YOUNG_OBJECTS_OF_HUB = 700
"""Smaller, as large collections block a big hub's loop."""

_END_SECONDS = 10.0
"""Time beyond `drain` until a forced end."""

_RELOAD = {signal.SIGHUP}
"""Blocked in the kernel between event loops, across exec and in threads, as its default would end the
process.
"""

log = structlog.get_logger("agent")


class Role(Worker, Protocol):
    """The agent of a leaf or hub."""

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until `stopping`, then end in order."""

    async def apply(self, new: Applied) -> None:
        """Apply changed inputs, rules, logging, leaves or users."""

    def accepts(self) -> tuple[bool, str]:
        """Return whether it accepts work now, and why not, for `/readyz`."""

    def status(self) -> Mapping[str, Any]:
        """Return the contents of `/status`."""

    def certificates(self) -> Mapping[str, bytes]:
        """Return certificates shown to its server by address."""

    def uplink(self) -> UplinkStatus | None:
        """Return the server's hub connection, or None."""


def run(config: Config, inputs: Sequence[Input], metrics: Metrics, files: Files) -> Exit:
    """Run the agent until SIGTERM or SIGINT; returns its exit code, `Exit.USAGE` only for a wrong
    configuration.

    Logs startup errors. SIGHUP rereads `files`; if a restart is needed, the process re-executes with its
    sockets.
    """
    if config.role == "hub":
        import agent.process.hub  # noqa: F401 - before the event loop, which it would hold up
    again = asyncio.Event()
    signal.pthread_sigmask(signal.SIG_BLOCK, _RELOAD)
    gc.freeze()  # the collector need not look at what stays, which is much where there are many leaves
    gc.set_threshold(_YOUNG_OBJECTS if config.role == "leaf" else _YOUNG_OBJECTS_OF_HUB)
    late = threading.Timer(config.publish.drain + _END_SECONDS, _force_end, [again])
    late.daemon = True
    try:
        with only_one(config.state_dir), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config, inputs, metrics, Reloader(config, files), again, late))
    except Exception as error:
        return _outcome(error)
    finally:
        late.cancel()
    return _well(again)


def _well(again: asyncio.Event) -> Exit:
    if again.is_set():
        # The same process, whatever supervises it; what else it had open is closed with the exec.
        LISTEN_SOCKETS.pass_fds(os.environ)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - its own arguments
    return Exit.WELL


def _force_end(again: asyncio.Event) -> None:
    """End or restart the process despite hanging parts, after draining."""
    log.error("agent not ended in time; ended by force")
    _well(again)
    os._exit(Exit.FAILED)


def _outcome(error: Exception) -> Exit:
    """Log an error and return its exit code. Supervisors restart after any but `Exit.USAGE`."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, RenderError | OtherDomainError):
        log.error("configuration refused", reason=str(error))
        return Exit.USAGE
    if isinstance(error, StateError | InUseError):
        log.error("cannot start", reason=str(error))
    elif isinstance(error, OSError):
        log.error("agent failed", exc_info=error)
    else:
        raise error
    return Exit.FAILED


async def _serve(
    config: Config,
    inputs: Sequence[Input],
    metrics: Metrics,
    reloader: Reloader,
    again: asyncio.Event,
    late: threading.Timer,
) -> None:
    path = config.state_dir / "state.json"
    state = StateFile(path, state_file.load(path, config.domain))
    with contextlib.suppress(OSError):  # then it stays marked, and `StateFile.run` says so and writes it
        await state.save()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if not stopping.is_set():
            late.start()
        stopping.set()

    supervisor = notifier(os.environ)

    def end() -> None:
        again.clear()  # it may drain already to start again
        if supervisor is not None:
            supervisor.stopping(config.publish.drain + 2 * _END_SECONDS)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, reloader.wanted)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _RELOAD)
    loop.call_later(KEPT_SECONDS, LISTEN_SOCKETS.close)
    health = ServerHealth(metrics)
    kept = await asyncio.to_thread(_kept, config, metrics)

    def restart() -> None:
        again.set()
        signal.pthread_sigmask(signal.SIG_BLOCK, _RELOAD)
        stop()

    role = _role(config, state, inputs, metrics, health, reloader)
    relay = _relay(config, metrics)
    certificates = CertificateWatch(config, metrics, role.certificates)
    admin = AdminServer(
        config.admin,
        metrics,
        lambda: {
            **role.status(),
            "server": health.status(),
            **({} if relay is None else {"relay": relay.status()}),
            **_state_row(config, state, kept),
            "certificates": certificates.rows(),
        },
        lambda: (False, health.sentence) if health.sentence is not None else role.accepts(),
        _fleet(config, role),
    )
    ended = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        admin_task = group.create_task(keep_serving("admin", partial(admin.run, ended), ended))
        tasks = []
        if relay is not None:  # before the server, which dials through it
            tasks.append(group.create_task(keep_serving("relay", relay.run)))
        server = await begin_server(config, state.current, health, stopping, supervisor)
        services = _services(config, state, health, metrics, role, server)
        services["certificates"] = certificates.run
        apply = partial(_apply, role, server, certificates, state.current.machine)
        services["reload"] = partial(reloader.run, apply, restart, supervisor, stopping.is_set)
        tasks += [group.create_task(keep_serving(*service)) for service in services.items()]
        if server is not None:
            tasks.append(group.create_task(server.supervise()))
        log.info("started", domain=config.domain, role=config.role, pid=os.getpid())
        if supervisor is not None:
            silent = (lambda: 0.0) if server is None else ServerSilence(server, health).seconds
            tasks.append(group.create_task(Vitals(supervisor, role, silent).run()))
        await role.run(stopping)
        for task in tasks:
            task.cancel()
        if server is not None:
            server.release()
        ended.set()
        await admin_task
    log.info("stopped", domain=config.domain)


def _services(
    config: Config,
    state: StateFile,
    health: ServerHealth,
    metrics: Metrics,
    role: Role,
    server: EmbeddedServer | None,
) -> dict[str, Callable[[], Awaitable[None]]]:
    """Return services beside the role by log name."""
    services: dict[str, Callable[[], Awaitable[None]]] = {}
    if (watch := server_watch(config, server, health)) is not None:
        services["server watch"] = watch.run
    if server is not None and config.role == "leaf":
        windows = Windows(config.link.windows)
        services["link gate"] = LinkGate(
            server, windows, health, role.uplink, lambda: state.current.spread
        ).run
    if server is not None and config.nats.mqtt.on:
        from agent.server.devices import Devices  # not held in memory where no device speaks MQTT

        services["mqtt"] = Devices(config, server, health, metrics, lambda: role.ready()[0]).run
    if config.role == "hub":
        services["state"] = state.run
    return services


def _role(
    config: Config,
    state: StateFile,
    inputs: Sequence[Input],
    metrics: Metrics,
    health: ServerHealth,
    reloader: Reloader,
) -> Role:
    # Imported here, so that an edge machine does not hold the hub's half in memory.
    if config.role == "hub":
        from agent.process.hub import HubAgent

        return HubAgent(config, metrics, health, state.current.machine)
    from agent.process.leaf import LeafAgent

    return LeafAgent(config, state, metrics, inputs, health, reloader)


def _relay(config: Config, metrics: Metrics) -> HubRelay | LeafRelay | None:
    """Return the relay that keeps links over breaks of the line, None where it is not configured."""
    if not config.resume_listen:
        return None
    listen = listen_address(config.resume_listen)
    if config.role == "hub":  # not held in memory without a relay
        from agent.server.resume.hub import HubRelay

        return HubRelay(listen, listen_address(config.nats.leaf_listen), metrics)
    from agent.server.resume.leaf import LeafRelay

    assert config.link.resume_port is not None
    return LeafRelay(listen, config.nats.hub_urls, config.link.resume_port, metrics)


def _kept(config: Config, metrics: Metrics) -> str | None:
    """Return and log why a power cut may take the state, or None."""
    problem = storage(config.state_dir).problem
    metrics.state_kept.set(problem is None)
    if problem is None:
        return None
    log.warning("state not kept", directory=str(config.state_dir), why=problem)
    return f"the state in {config.state_dir} is on {problem}; {MOVE}"


def _state_row(config: Config, state: StateFile, warning: str | None) -> Mapping[str, Any]:
    """Return the agent's identity and its state's faults."""
    where = str(config.state_dir.resolve())
    return {"state_dir": where, "state_problem": state.problem, "state_warning": warning}


def _fleet(config: Config, role: Role) -> FleetPages | None:
    if config.role != "hub":
        return None
    from agent.hub.web import FleetPages  # not held in memory on a leaf
    from agent.process.hub import HubAgent

    assert isinstance(role, HubAgent)
    return FleetPages(role.status, role.audited)


async def _apply(
    role: Role, server: EmbeddedServer | None, certificates: CertificateWatch, machine: str, new: Applied
) -> None:
    """Apply a configuration; the server admits and revokes before a registrar starts with it."""
    if new.change.live & {"leaf", "user"} and server is not None:
        await server.set_config(await asyncio.to_thread(server_config, new.config, machine))
    await role.apply(new)
    certificates.config = new.config
