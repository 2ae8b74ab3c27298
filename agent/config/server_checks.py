"""Checks [nats] and its files. The agent waits for missing files, which may appear with a mount."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agent import contract
from agent.base.files import named, open_regular, others_may
from agent.base.logs import listed
from agent.config.keys import check_password
from agent.config.schema import Config
from agent.config.server_schema import Mqtt, Nats
from agent.config.values import (
    Problem,
    contract_problem,
    duplicate,
    embedded_only,
    listen_address,
    numbered,
)

CLUSTER_TLS: Final = ("tls_cert", "tls_key", "tls_ca")
_SEEDS: Final = ("seed_file", "system_seed_file", "link_seed_file", "jobs_seed_file", "device_seed_file")
_USER: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}\Z")


def check_server(config: Config) -> Iterator[Problem]:
    """Yield problems of [nats] except addresses and sizes, without reading files."""
    yield from _apps(config)
    yield from _mqtt(config)
    yield from _extra(config)
    yield from _external(config.nats)
    if config.nats.cluster.on:
        yield from _cluster(config)


def _cluster(config: Config) -> Iterator[Problem]:
    cluster = config.nats.cluster
    if config.role != "hub":
        yield Problem("nats.cluster", "a leaf's server stands alone", "set it on the hub")
        return
    if config.nats.server == "external" and not cluster.name:
        yield Problem(
            "nats.cluster.name", "is missing, and its servers need different names", 'write name = "a"'
        )
    if len(cluster.routes) % 2 == 0:
        yield Problem(
            "nats.cluster.routes",
            f"{len(cluster.routes)} servers cannot outvote each other when one is lost",
            "name all three of them, this one included",
        )
    for route in cluster.routes:
        try:
            listen_address(route)
        except ValueError:
            yield Problem(
                "nats.cluster.routes", f'"{route}" is not an address', 'write it as "10.0.0.1:6222"'
            )
    if cluster.password_file is None:
        yield Problem(
            "nats.cluster.password_file",
            "is missing, and without it anybody could become one of the hub's servers",
            "name a file with one password for all of them",
        )
    files = {name: getattr(cluster, name) for name in CLUSTER_TLS}
    for name in [name for name, file in files.items() if file is None and any(files.values())]:
        yield Problem(f"nats.cluster.{name}", "is missing", f"give {listed(CLUSTER_TLS)}, or none of them")
    if cluster.name:
        yield from contract_problem("nats.cluster.name", contract.check_domain, cluster.name, "rename it")
    if config.registrar.replicas == 1:
        yield Problem(
            "registrar.replicas",
            "is 1, so that the agents of the cluster's servers would all be registrars",
            "write replicas = 3",
        )


def _apps(config: Config) -> Iterator[Problem]:
    seen: set[str] = set()
    for app in config.nats.apps:
        yield from contract_problem("nats.apps", contract.check_app, app, "name the program")
        yield from duplicate("nats.apps", app, seen)
        if app == contract.APP:
            yield Problem("nats.apps", f'"{app}" is this agent itself', "name other programs only")
    if config.nats.apps and config.role == "hub":
        yield Problem("nats.apps", "commands are read on leaves", "move it to a leaf")


def _external(nats: Nats) -> Iterator[Problem]:
    if nats.server == "external" and nats.seed_file is None:
        yield Problem(
            "nats.seed_file",
            "is missing, and a server that is not the agent's own knows no key of the agent's making",
            "name the file with the seed of a user of that server",
        )


def _extra(config: Config) -> Iterator[Problem]:
    """Check the added server settings."""
    nats, hub = config.nats, config.role == "hub"
    if not (nats.extra or nats.remote):
        return
    from agent.config.server_overlay import TAKEN, extra_problems  # not held in memory where nothing is added

    added = [("extra", nats.extra, TAKEN[config.role]), ("remote", nats.remote, TAKEN["remote"])]
    for name, table, rendered in added:
        for key, stood, remedy in extra_problems(table, rendered):
            yield Problem(f"nats.{name}.{key}", stood, remedy)
    if nats.remote and hub:
        yield Problem("nats.remote", "the hub dials no other server", "set it on the leaf")


def _mqtt(config: Config) -> Iterator[Problem]:
    mqtt = config.nats.mqtt
    if mqtt.on and config.role == "hub":
        yield Problem("nats.mqtt", "readings are taken in on leaves", "move it to a leaf")
    elif mqtt.on and config.nats.server == "external":
        yield embedded_only("nats.mqtt")
    for name, path, other in (("tls_cert", mqtt.tls_cert, "tls_key"), ("tls_key", mqtt.tls_key, "tls_cert")):
        if path is not None and getattr(mqtt, other) is None:
            yield Problem(f"nats.mqtt.{name}", f"stands without {other}", "give both, or none")
    seen: set[str] = set()
    for number, user in numbered(mqtt.users):
        key = f"nats.mqtt.users[{number}]"
        if _USER.match(user.name) is None:
            yield Problem(
                f"{key}.name",
                f'"{user.name:.60}" is not 1 to 64 letters, digits, ".", "_", "@" or "-"',
                "choose another name",
            )
        yield from duplicate(f"{key}.name", user.name, seen)


def check_files(config: Config) -> Iterator[Problem]:
    """Yield problems of the files in [nats]; those of an external server are its own."""
    for name in _SEEDS:
        file: Path | None = getattr(config.nats, name)
        if file is not None:
            yield from _seed_file(f"nats.{name}", file)
    if config.nats.server == "external":
        return
    yield from _mqtt_files(config.nats.mqtt)
    for name in CLUSTER_TLS:
        yield from _pem(f"nats.cluster.{name}", getattr(config.nats.cluster, name))
    password_file = config.nats.cluster.password_file
    if password_file is not None and (stood := check_password(password_file)) is not None:
        key = "nats.cluster.password_file"
        yield Problem(key, stood, "put the password there, readable by its owner only")


def _pem(key: str, file: Path | None) -> Iterator[Problem]:
    if file is None:
        return
    try:
        open_regular(file).close()
    except OSError as error:
        yield Problem(key, f"{named(file)} cannot be read ({error.strerror})", "name a file in PEM")


def _seed_file(key: str, file: Path) -> Iterator[Problem]:
    try:
        with open_regular(file) as opened:
            mode = os.fstat(opened.fileno()).st_mode
    except OSError as error:
        yield Problem(key, f"{named(file)} cannot be read ({error.strerror})", "put the seed there")
        return
    if others_may(file, mode):
        shown = f"{mode & 0o777:04o}"
        yield Problem(key, f"{file} may be read by others (mode {shown})", f"run chmod 600 {file}")


def _mqtt_files(mqtt: Mqtt) -> Iterator[Problem]:
    for name, path in (("tls_cert", mqtt.tls_cert), ("tls_key", mqtt.tls_key)):
        yield from _pem(f"nats.mqtt.{name}", path)
    for number, user in enumerate(mqtt.users, 1):
        if (stood := check_password(user.password_file)) is not None:
            key = f"nats.mqtt.users[{number}].password_file"
            yield Problem(key, stood, "put the password there, readable by its owner only")
