"""Renders all files of a site from its topology. Pure; the password is given.

Server configurations derive from the agents', so they agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tomlkit
from msgspec import Struct

from agent.base.logs import listed
from agent.base.nats_server import RenderError, Variable
from agent.cli.enrol import IDENTITY
from agent.cli.site import SiteServer, Topology, hub_table, leaf_table
from agent.cli.site.checks import check
from agent.config import Config, ConfigError, Problem, aggregates, parse
from agent.contract import HUB_DOMAIN, server_name
from agent.server.render import cluster_include, render
from agent.server.setup import account_users, leaf_users, link_rights
from agent.server.values import ClusterConfig, HubConfig, LeafConfig

CLUSTER: Final = "cluster.conf"
SHARED: Final = "cluster.password"
MARK: Final = "# Written by `petiole render`; what is changed here by hand is lost.\n"
README: Final = "README.md"


@dataclass(frozen=True, slots=True)
class RenderedFile:
    """A file; `private` means mode 0600."""

    name: str
    text: str
    private: bool = False


def rendered(
    site: Topology, inputs: Mapping[str, type[Struct]], password: str, earlier: list[Problem] | None = None
) -> list[RenderedFile]:
    """Return files by name. Raises `ConfigError` with every problem, including `earlier` ones.

    `inputs` maps types to options; `password` is for cluster routes.
    """
    known = {problem.key for problem in earlier or ()}
    problems = [
        str(problem)
        for problem in [*(earlier or ()), *(problem for problem in check(site) if problem.key not in known)]
    ]
    complaints: dict[str, list[str]] = {}
    configs: dict[str, Config] = {}
    files: list[RenderedFile] = []
    for leaf in site.leaf:
        if leaf is None or leaf.forgotten:
            continue
        name = f"leaf-{leaf.domain}"
        table = leaf_table(site, leaf)
        config = _config(name, table, inputs, complaints)
        if config is None:
            continue
        configs[leaf.domain] = config
        files.append(RenderedFile(f"{name}.toml", _toml(table)))
        names = config.class_names
        if leaf.classes and leaf.classes != names:
            problems.append(f"leaf of {leaf.domain}: its classes are {leaf.classes}, its config says {names}")
    table = hub_table(site, configs)
    hub = None if problems else _config("hub", table, inputs, complaints)
    problems += [_shared(text, names) for text, names in complaints.items()]
    if problems or hub is None:
        raise ConfigError(problems)
    if site.hub.embedded and len(site.hub.server) > 1:
        files.append(RenderedFile(SHARED, f"{password}\n", private=True))
        for server in site.hub.server:
            name = f"hub-{server.name}.toml"
            files.append(RenderedFile(name, _toml(hub_table(site, configs, server))))
    else:
        files.append(RenderedFile("hub.toml", _toml(table)))
    try:
        files += _servers(site, hub, configs, password)
    except RenderError as error:
        raise ConfigError([str(error)]) from None
    files.append(RenderedFile(README, readme(site, sorted(file.name for file in files))))
    return sorted(files, key=lambda file: file.name)


def _servers(site: Topology, hub: Config, leaves: Mapping[str, Config], password: str) -> list[RenderedFile]:
    files = []
    if not site.hub.embedded:
        cluster = len(site.hub.server) > 1
        for server in site.hub.server:
            name = f"hub-{server.name}.conf" if cluster else "hub.conf"
            files.append(RenderedFile(name, render(_hub(site, server, hub))))
        if cluster:
            routes = [server.cluster_listen for server in site.hub.server]
            files.append(RenderedFile(CLUSTER, MARK + cluster_include(password, routes), private=True))
    if not site.leaves.embedded:
        files += [
            RenderedFile(f"leaf-{domain}.conf", render(_leaf(site, config)))
            for domain, config in leaves.items()
        ]
    return files


def _hub(site: Topology, server: SiteServer, config: Config) -> HubConfig:
    return HubConfig(
        server_name=server_name(HUB_DOMAIN, server.name),
        identity=IDENTITY,
        registrar=Variable("$REGISTRAR_KEY"),
        registrar_system=Variable("$REGISTRAR_SYSTEM_KEY"),
        jobs=Variable("$JOBS_KEY"),
        store_dir=site.hub.store_dir,
        max_file_store=int(site.hub.max_file_store),
        leaves=leaf_users(config.leaf),
        aggregates=aggregates(config),
        links=link_rights(config),
        users=account_users(config),
        listen=server.listen,
        leaf_listen=server.leaf_listen,
        cluster=ClusterConfig(server.cluster_listen, CLUSTER, tls=site.hub.cluster_tls)
        if server.cluster_listen
        else None,
        extra=site.hub.extra,
    )


def _leaf(site: Topology, config: Config) -> LeafConfig:
    return LeafConfig(
        server_name="",
        identity=IDENTITY,
        domain=config.domain,
        store_dir=site.leaves.store_dir,
        max_file_store=int(site.leaves.max_file_store),
        hub_urls=tuple(site.hub.urls),
        link_key_file=Path(IDENTITY),
        agent=Variable("$AGENT_KEY"),
        agent_system=Variable("$AGENT_SYSTEM_KEY"),
        device=Variable("$DEVICE_KEY"),
        classes=tuple(config.class_names),
        apps=tuple(config.nats.apps),
        heard=config.heard,
        links=link_rights(config),
        users=account_users(config, make_keys=False),
        listen=config.nats.listen,
        ping_seconds=config.link.ping_seconds,
        extra=site.leaves.extra,
        remote=site.leaves.remote,
    )


def _config(
    name: str, table: dict[str, Any], inputs: Mapping[str, type[Struct]], complaints: dict[str, list[str]]
) -> Config | None:
    try:
        return parse(table, inputs)
    except ConfigError as error:
        for text in error.problems:
            complaints.setdefault(text, []).append(f"{name}.toml")
        return None


def _shared(text: str, names: list[str]) -> str:
    """Merge equal problems of agents."""
    return f"{listed(names, 1)}: {text}"


def _toml(table: Mapping[str, Any]) -> str:
    return MARK + tomlkit.dumps(_plain(table))


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    """Drop empty tables and put tables last."""
    plain = {key: _plain(value) if isinstance(value, Mapping) else value for key, value in table.items()}
    kept = {key: value for key, value in plain.items() if value not in ({}, [])}
    return dict(sorted(kept.items(), key=lambda item: _is_table(item[1])))


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and isinstance(value[0], Mapping))


def readme(site: Topology, names: Sequence[str]) -> str:
    """Return the README; `names` are the other files."""
    hub = [name for name in names if name.startswith("hub")]
    lines = [
        "# What goes where",
        "",
        "Written by `petiole render`. No file here holds a private key; those are made on each machine by",
        "`petiole enrol`, which also prints what the topology has to know of a leaf.",
        "",
        "| file | on | as |",
        "|---|---|---|",
        *(f"| `{name}` | {_where(name)} |" for name in names),
        "",
        "## The hub",
        "",
        "```sh",
        _enrol(site.hub.embedded),
    ]
    if not site.hub.embedded:
        lines += [f"nats-server -c /etc/petiole/{'nats.conf'}"]
    lines += ["petiole run -c /etc/petiole.toml", "```", ""]
    if SHARED in names:
        lines += [
            "Run these on each of its machines. Agents make keys of their own, but the jobs show one: copy",
            "`keys/jobs.nk` of the first machine's `state_dir` to the others before their agents start.",
            "",
        ]
    elif len(hub) > 2:
        lines += [
            "`enrol` writes `identity.conf` next to the configuration: copy it, and `cluster.conf`, to each",
            "server of the cluster. Both go next to that server's `nats.conf`, with mode 0600.",
            "",
        ]
    lines += ["## Each leaf", "", "```sh", _enrol(site.leaves.embedded)]
    if not site.leaves.embedded:
        lines += ["nats-server -c /etc/petiole/nats.conf"]
    lines += [
        "petiole run -c /etc/petiole.toml",
        "```",
        "",
        "What `enrol` prints goes into the topology (`petiole fleet add`), which is then rendered again.",
        "",
    ]
    waiting = [leaf.domain for leaf in site.leaf if leaf is not None and not leaf.key and not leaf.forgotten]
    if waiting:
        lines += ["Not let in, for the topology has no key of them: " + ", ".join(waiting) + ".", ""]
    return "\n".join(lines)


def _enrol(embedded: bool) -> str:
    """Return the enrol step, which writes the included file of a server."""
    return "petiole enrol -c /etc/petiole.toml" + ("" if embedded else " --server-directory /etc/petiole")


def _where(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    target = "/etc/petiole/nats.conf" if kind == "conf" else "/etc/petiole.toml"
    if stem == "cluster":
        return f"every server of the hub | `/etc/petiole/{name}`, mode 0600"
    if stem == "hub":
        return f"the hub | `{target}`"
    if stem.startswith("hub-"):
        return (
            f"the hub's {'server' if kind == 'conf' else 'machine'} {stem.removeprefix('hub-')} | `{target}`"
        )
    return f"leaf {stem.removeprefix('leaf-')} | `{target}`"
