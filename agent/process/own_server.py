"""Starts and watches the agent's nats-server."""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from agent.base.machine import Notifier
from agent.base.supervisor import until_made
from agent.config import Config
from agent.leaf.state import State
from agent.server.health import ServerHealth
from agent.server.process import EmbeddedServer
from agent.server.setup import check_keys, hub_sync_seconds, identities, server_config, server_directory
from agent.server.values import ServerConfig
from agent.server.watch import ServerWatch

log = structlog.get_logger("agent")


def server_watch(config: Config, server: EmbeddedServer | None, health: ServerHealth) -> ServerWatch | None:
    """Return the server's watch, None without system key."""
    system = identities(config).system
    if system is None:
        health.synced("whether acknowledged means synced is not known: name system_seed_file", known=False)
        return None
    if server is None:
        return ServerWatch(config.nats.url, system, config.identity, health)
    return ServerWatch(
        server.url,
        system,
        config.identity,
        health,
        restart=server.end,
        store=server.config.store_dir,
        interval=hub_sync_seconds(config) if config.role == "hub" else 0.0,
    )


async def begin_server(
    config: Config,
    state: State,
    health: ServerHealth,
    stopping: asyncio.Event,
    supervisor: Notifier | None,
) -> EmbeddedServer | None:
    """Start the embedded server, None if external or ending. Raises `RenderError`."""
    make = partial(asyncio.to_thread, _values, config, state)
    values = await until_made(make, stopping, partial(_missing, health, supervisor))
    health.unstarted = None
    if values is None:
        return None
    server = EmbeddedServer(values, server_directory(config), report=health.started)
    await server.try_start()
    return server


def _values(config: Config, state: State) -> ServerConfig | None:
    if config.nats.server == "external":
        check_keys(config)
        return None
    return server_config(config, state.machine, state.removed_classes(config.class_names))


def _missing(health: ServerHealth, supervisor: Notifier | None, reason: str) -> None:
    log.error("keys not usable; retried", reason=reason)
    health.unstarted = f"a key is missing: {reason}"
    if supervisor is not None:
        supervisor.status(health.unstarted)
