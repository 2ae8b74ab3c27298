"""Derives key files and server values from the agent's configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from agent import contract
from agent.base.files import is_there
from agent.base.http.access import AccessError, tls_context
from agent.base.listen_sockets import obstacle
from agent.base.nats_server import Variable
from agent.base.storage import FLUSHING, file_system
from agent.config import Config, LeafMember, aggregates, cells, listen_address
from agent.config.checks import server_listeners
from agent.config.keys import check_password, ensure_key, public_key
from agent.config.values import Windows, local_time
from agent.server.child import process_of
from agent.server.permissions import LinkRights
from agent.server.values import (
    AccountUser,
    ClusterConfig,
    HubConfig,
    LeafConfig,
    LeafUser,
    MqttListener,
    MqttUser,
    ServerConfig,
)
from agent.server.workspace import Workspace

IDENTITY = "identity.conf"
"""Included by the configuration of an external server, written by `petiole enrol`."""


class Identities(Struct, frozen=True):
    """Seed files of the agent's account and system connections."""

    account: Path
    system: Path | None
    cells: Mapping[str, Path] = {}
    """At a hub, those in the accounts of the cells but the first."""


def key_file(config: Config, name: str) -> Path:
    """Return the path of an own seed."""
    return config.state_dir / "keys" / f"{name}.nk"


def identities(config: Config) -> Identities:
    """Return the configured or own seeds."""
    own = "agent" if config.role == "leaf" else "registrar"
    account, system = config.nats.seed_file or key_file(config, own), config.nats.system_seed_file
    if _external(config):
        return Identities(account, system)
    rest = {cell: key_file(config, f"{own}_{cell}") for cell in cells(config) if cell != contract.HOME}
    return Identities(account, system or key_file(config, f"{own}_system"), rest)


RECEIPT_KEY: Final = "receipt"
"""Name of the seed that signs ledger records on a leaf, and roots at the hub."""


def link_key_file(config: Config) -> Path:
    """Return the leaf's link seed."""
    return config.nats.link_seed_file or key_file(config, "link")


def server_directory(config: Config) -> Path:
    return (config.state_dir / "nats").resolve()


def taken_ports(config: Config) -> list[str]:
    """Return why ports are unavailable, a sentence each; none while it runs."""
    if _external(config) or process_of(Workspace(server_directory(config)).configuration):
        return []
    found = {key: obstacle(listen_address(listen)) for key, listen in server_listeners(config)}
    return [f"{key}: {problem}" for key, problem in found.items() if problem is not None]


def server_config(config: Config, machine: str, removed: Iterable[str] = ()) -> ServerConfig:
    """Return the server's values; `removed` classes had streams.

    Makes missing own keys of an embedded server; for an external server names the variables of `IDENTITY`.

    Raises `SeedError`, `OSError` or `RenderError`, also for missing configured keys.
    """
    return _hub(config, machine) if config.role == "hub" else _leaf(config, machine, tuple(removed))


def check_keys(config: Config) -> None:
    """Read the keys for an external server. Raises `SeedError`."""
    mine = identities(config)
    for path in (mine.account, mine.system):
        if path is not None:
            public_key(path)


def _key(config: Config, given: Path | None, name: str) -> str:
    """Return an identity's public key, or its variable for an external server."""
    if _external(config):
        return Variable(f"${name.upper()}_KEY")
    return ensure_key(key_file(config, name)) if given is None else public_key(given)


def _external(config: Config) -> bool:
    return config.nats.server == "external"


def _hub(config: Config, machine: str) -> HubConfig:
    nats, files = config.nats, None if _external(config) else Workspace(server_directory(config))
    return HubConfig(
        server_name=contract.server_name(contract.HUB_DOMAIN, nats.cluster.name or machine),
        identity=IDENTITY if _external(config) else "",
        store_dir=store_directory(config),
        max_file_store=int(config.nats.max_file_store),
        registrar=_key(config, nats.seed_file, "registrar"),
        registrar_system=_key(config, nats.system_seed_file, "registrar_system"),
        jobs=_key(config, nats.jobs_seed_file, "jobs"),
        cells={cell: ensure_key(path) for cell, path in identities(config).cells.items()},
        leaves=leaf_users(config.leaf),
        aggregates=aggregates(config),
        links=link_rights(config),
        users=account_users(config),
        listen=config.nats.listen,
        leaf_listen=config.nats.leaf_listen,
        sync_seconds=hub_sync_seconds(config),
        cluster=_cluster(config) if config.nats.cluster.on else None,
        extra=config.nats.extra,
        pid_file=None if files is None else files.pid,
        log_file=None if files is None else files.log,
    )


def _cluster(config: Config) -> ClusterConfig:
    cluster = config.nats.cluster
    return ClusterConfig(
        cluster.listen,
        routes=tuple(cluster.routes),
        password_file=cluster.password_file,
        tls=cluster.tls,
    )


def hub_sync_seconds(config: Config) -> float:
    """Return the hub's sync interval; 0 for before acks, also on file systems that may lose replaced files,
    as nats-server then compacts without sync.
    """
    seconds = config.hub_sync_seconds
    return seconds if seconds and file_system(store_directory(config)) in FLUSHING else 0.0


def leaf_users(members: Iterable[LeafMember]) -> tuple[LeafUser, ...]:
    """Return leaves with keys. Raises `RenderError`."""
    return tuple(
        LeafUser(
            leaf.domain,
            leaf.key,
            tuple(leaf.classes),
            tuple(leaf.takes),
            tuple(leaf.gives),
            tenant=leaf.tenant,
            cell=leaf.cell_name,
        )
        for leaf in members
        if leaf.key
    )


def _leaf(config: Config, machine: str, removed: tuple[str, ...]) -> LeafConfig:
    nats = config.nats
    _key(config, nats.link_seed_file, "link")  # makes a missing one
    return LeafConfig(
        server_name="" if _external(config) else contract.server_name(config.domain, machine),
        identity=IDENTITY if _external(config) else "",
        domain=config.domain,
        store_dir=store_directory(config),
        max_file_store=int(config.nats.max_file_store),
        hub_urls=tuple(config.nats.hub_urls),
        link_key_file=link_key_file(config),
        agent=_key(config, nats.seed_file, "agent"),
        agent_system=_key(config, nats.system_seed_file, "agent_system"),
        device=_key(config, nats.device_seed_file, "device"),
        classes=tuple(config.class_names),
        removed=removed,
        apps=tuple(config.nats.apps),
        heard=config.heard,
        links=link_rights(config),
        users=account_users(config),
        mqtt=mqtt_listener(config),
        extra=config.nats.extra,
        remote=config.remote,
        listen=config.nats.listen,
        ping_seconds=config.link.ping_seconds,
        link_open=Windows(config.link.windows).open(local_time()),
    )


def account_users(config: Config) -> tuple[AccountUser, ...]:
    """Return users, making missing link keys of an embedded server. Raises `SeedError` or `RenderError`."""
    found = []
    for user in config.users:
        link = user_link_key_file(config, user.name) if user.linked else None
        if link is not None and not _external(config):
            ensure_key(link)
        on_leaf = config.role == "leaf"
        reads = [contract.leaf_stream(config.domain, cls) for cls in user.reads] if on_leaf else user.reads
        links = [leaf.users[user.name] for leaf in config.leaf if leaf.key and user.name in leaf.users]
        found.append(AccountUser(user.name, user.key, int(user.max_bytes), tuple(reads), link, tuple(links)))
    return tuple(found)


def user_link_key_file(config: Config, user: str) -> Path:
    """Return a user link's seed."""
    return key_file(config, f"link-{user}")


def mqtt_listener(config: Config) -> MqttListener | None:
    """Return the listener, without unusable files, which would stop the server."""
    mqtt = config.nats.mqtt
    if not mqtt.on:
        return None
    streams = store_directory(config) / "jetstream" / contract.ACCOUNT / "streams"
    return MqttListener(
        listen=mqtt.listen,
        users=tuple(
            MqttUser(user.name, user.password_file)
            for user in mqtt.users
            if check_password(user.password_file) is None
        ),
        tls=mqtt.tls,
        open=is_there(streams / contract.MQTT_MESSAGES),
        shut=None if mqtt.tls is None else _tls_problem(*mqtt.tls),
    )


def _tls_problem(cert: Path, key: Path) -> str | None:
    try:
        tls_context(cert, key)
    except AccessError as error:
        return str(error)
    return None


def mqtt_problems(config: Config, listener: MqttListener) -> list[str]:
    """Return why devices are not admitted, a sentence each."""
    if listener.shut is not None:
        return [f"MQTT devices cannot connect: {listener.shut}"]
    let_in = {user.name for user in listener.users}
    return [
        f"MQTT user {user.name} is not let in: {check_password(user.password_file) or 'it will be soon'}"
        for user in config.nats.mqtt.users
        if user.name not in let_in
    ]


def link_rights(config: Config) -> tuple[LinkRights, ...]:
    """Return rights for declared links."""
    if not config.mirror and not config.source:
        return ()
    from agent.config.mirrors import declared  # not held in memory where no link is declared

    return tuple(
        LinkRights(
            link.name,
            tuple((origin.api or "$JS.API", origin.stream) for origin in link.origins),
            deletes=link.kind == "mirror",
        )
        for link in declared(config)
    )


def store_directory(config: Config) -> Path:
    return config.nats.store_dir or server_directory(config) / "store"
