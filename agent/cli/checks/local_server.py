"""Queries the local server and judges its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent import contract
from agent.base.files import UnseenError, mode_at, room
from agent.base.listen_sockets import near_host
from agent.base.nats_server import MINIMUM, parse_version
from agent.base.storage import file_system
from agent.cli.checks import Cause, Finding, local_probe, server, streams
from agent.cli.checks.permissions import PROBE, at_home, of_system, violated
from agent.config import Config, aggregates_of, listen_address
from agent.config.keys import SeedError, public_key
from agent.contract import Exit
from agent.server import link_permissions, permissions
from agent.server.dialling import WANTS_CERTIFICATE, Nowhere, greet
from agent.server.hub_route import Route, Tls, reading
from agent.server.permissions import AGENT_TRACES, REGISTRAR_TRACES, Permissions
from agent.server.setup import hub_sync_seconds, identities, link_rights, store_directory

_NO_KEY: Final = (
    "the agent's own key {key} is not there yet, so what answers at {listen} is not the server of "
    "this agent; end that server or change nats.listen, and start the agent, which makes the key"
)
_LOOKS: Final = Route(upgrades=False)


@dataclass(frozen=True, slots=True)
class LocalServerInfo:
    greeting: Mapping[str, Any] | Nowhere
    account: local_probe.AccountProbe | None = None
    system: local_probe.System | None = None
    leaf_port: Mapping[str, Any] | Nowhere | None = None


async def look(config: Config) -> LocalServerInfo:
    greeting, leaf_port = await asyncio.gather(
        _greeting(config.nats.listen),
        _leaf_port(config) if config.role == "hub" else _nothing(),
    )
    if isinstance(greeting, Nowhere):
        return LocalServerInfo(greeting, leaf_port=leaf_port)
    version = parse_version(str(greeting.get("version")))
    if version is None or version < MINIMUM:
        return LocalServerInfo(
            greeting, leaf_port=leaf_port
        )  # an older one might deliver what is only to be traced
    seeds, name = identities(config), str(greeting.get("server_name"))
    account, system = await asyncio.gather(
        _as_account(config, seeds.account), _as_system(config, seeds.system, name)
    )
    return LocalServerInfo(greeting, account, system, leaf_port)


async def _nothing() -> None:
    return None


async def _leaf_port(config: Config) -> Mapping[str, Any] | Nowhere:
    """Return the greeting of the leaf port, with TLS first if configured. External servers' settings are
    unknown.
    """
    table = config.nats.extra.get("leafnodes")
    tls = table.get("tls") if isinstance(table, Mapping) else None
    first = Route(Tls(reading(), first=True))
    if isinstance(tls, Mapping) and tls.get("handshake_first"):
        return await _greeting(config.nats.leaf_listen, first)
    plain = await _greeting(config.nats.leaf_listen)
    if isinstance(plain, Nowhere) and plain.unknown and config.nats.server == "external":
        secured = await _greeting(config.nats.leaf_listen, first)
        return plain if isinstance(secured, Nowhere) and secured.why != WANTS_CERTIFICATE else secured
    return plain


async def _greeting(listen: str, route: Route = _LOOKS) -> Mapping[str, Any] | Nowhere:
    host, port = listen_address(listen)
    greeting = await greet((near_host(host), port), route)
    if isinstance(greeting, Nowhere):
        return greeting
    greeting.close()
    return greeting.info


async def _as_account(config: Config, seed: Path) -> local_probe.AccountProbe:
    if (why := _no_key(config, seed) or _unusable(seed)) is not None:
        return local_probe.AccountProbe(closed=why)
    domain = config.domain
    subjects = {
        contract.leaf_stream(domain, cls): contract.leaf_subjects(domain, cls) for cls in config.class_names
    }
    return await local_probe.account(
        config.nats.url,
        seed,
        config.identity,
        _needed_here(config),
        _destination(config),
        subjects if config.role == "leaf" else {},
        _questions(config),
    )


async def _as_system(config: Config, seed: Path | None, name: str) -> local_probe.System | None:
    if seed is None:
        return None
    if (why := _unusable(seed)) is not None:
        return local_probe.System(closed=why)
    return await local_probe.system(config.nats.url, seed, config.identity, name)


def _no_key(config: Config, seed: Path) -> str | None:
    """Return why the agent's own key is missing, or None."""
    try:
        if config.nats.seed_file is not None or mode_at(seed) is not None:
            return None
    except UnseenError as why:
        return f"{seed} cannot be looked at ({why}); run this as the agent's user, or as root"
    return _NO_KEY.format(key=seed, listen=config.nats.listen)


def _unusable(seed: Path) -> str | None:
    try:
        public_key(seed)
    except SeedError as error:
        return str(error)
    return None


def _needed_here(config: Config) -> Permissions:
    if config.role == "hub":
        leaves = [(leaf.domain, leaf.classes) for leaf in config.leaf if leaf.key and not leaf.cell]
        return permissions.registrar(
            aggregates_of(config, contract.HOME),
            leaves,
            link_rights(config),
            users=bool(config.user),
            several=config.nats.cluster.on,
        )
    return permissions.agent(
        config.domain,
        config.class_names,
        link_rights(config),
        config.nats.mqtt.on,
        config.heard,
    )


def _destination(config: Config) -> str:
    """Return an unused subject that the agent may use."""
    return REGISTRAR_TRACES if config.role == "hub" else AGENT_TRACES


def _questions(config: Config) -> dict[str, tuple[str, str]]:
    """Return a question and reply subject per leaf of a hub."""
    if config.role != "hub":
        return {}
    return {
        leaf.domain: (
            f"{contract.api_prefix(leaf.domain)}.STREAM.INFO.{contract.leaf_stream(leaf.domain, cls)}",
            f"{link_permissions.leaf_inbox(leaf.domain)}.{PROBE}",
        )
        for leaf in config.leaf
        if leaf.key and not leaf.cell
        for cls in leaf.classes[:1]
    }


def judge(config: Config, seen: LocalServerInfo, hub: Mapping[str, Any] | None) -> list[Finding]:
    """Judge the answers; `hub` is the hub's greeting."""
    embedded = config.nats.server == "embedded"
    at = config.nats.listen
    if isinstance(seen.greeting, Nowhere):
        start = "start the agent, which runs it" if embedded else "start it, or correct nats.listen"
        if "hangs" in seen.greeting.why:
            again = "which the agent restarts" if embedded else "and start it again"
            start = f"find the program with `ss -ltnp`: end it, or, if it is the server, kill that, {again}"
        sentence = f"the local server at {at}: {seen.greeting.why}"
        down = server.SERVER.failure(sentence, start, Exit.UNREACHABLE).causing(Cause.SERVER)
        return [down.after(Cause.AGENT) if embedded else down]
    findings = [server.judge_version(f"the local server at {at}", str(seen.greeting.get("version")))]
    if seen.account is None:
        return findings
    system = seen.system.answers if seen.system is not None else {}
    findings += _judged_account(config, seen.account, embedded)
    findings += _judged_system(seen.system, embedded)
    if not (seen.account.info is None and violated("$JS.API.INFO", seen.account.refusals)):
        shares = server.shares_system(system.get("VARZ", {}), system.get("LEAFZ", {}))
        if not seen.account.closed:
            findings += server.jetstream(config.domain, seen.account.info, hub, shares)
    if "LEAFZ" in system and config.role == "leaf" and not config.link.windows:
        findings.append(server.linked(system["LEAFZ"]))
    if "HEALTHZ" in system:
        findings += server.health(system["HEALTHZ"])
    if "VARZ" in system:
        is_hub = config.role == "hub"
        findings.append(server.synced(system["VARZ"], hub_sync_seconds(config) if is_hub else 0.0))
        if is_hub and config.hub_sync_seconds:
            findings += server.flushes(file_system(store_directory(config)))
        findings += [] if embedded else _store(system["VARZ"])
    return findings


def _judged_account(config: Config, account: local_probe.AccountProbe, embedded: bool) -> list[Finding]:
    if account.closed:
        return [_closed("the agent's user", account.closed, embedded)]
    needed = _needed_here(config)
    findings = list(at_home(needed, account.refusals, _destination(config), embedded=embedded))
    for domain, count in account.answered.items():
        findings += streams.two_leaves(domain, count)
    return findings


def _judged_system(system: local_probe.System | None, embedded: bool) -> list[Finding]:
    if system is None:
        return [
            server.SERVER.warning(
                "without a user of the system account the agent cannot see whether the link is lost, whether "
                "the server syncs, and whether it has stopped writing",
                "name its key in nats.system_seed_file",
            )
        ]
    if system.closed:
        return [_closed("the user of the system account", system.closed, embedded)]
    unanswered = [question for question in local_probe.QUESTIONS if question not in system.answers]
    return list(of_system(unanswered, embedded))


def _closed(user: str, why: str, embedded: bool) -> Finding:
    sentence, _, remedy = why.partition("; ")
    if why == local_probe.SILENCE:
        remedy = "kill and start it again; the agent restarts an embedded one"
        finding = server.SERVER.failure(
            f"the server lets {user} connect and says nothing more", remedy, Exit.UNREACHABLE
        )
        return finding.causing(Cause.SERVER)
    if not remedy:
        remedy = "add its public key to the users of the local server's configuration, and reload it"
        if embedded:
            remedy = "restart the agent, which renders its server's configuration again"
    return server.SERVER.failure(f"{user} is not let in: {sentence}", remedy).after(Cause.USER)


def _store(varz: Mapping[str, Any]) -> list[Finding]:
    jetstream = varz.get("jetstream") or {}
    config, stats = jetstream.get("config") or {}, jetstream.get("stats") or {}
    left = room(Path(config["store_dir"])) if config.get("store_dir") else None
    limit, used = int(config.get("max_storage") or 0), int(stats.get("storage") or 0)
    found = [server.judge_room(limit, used, left, "max_file_store")]
    if left is not None:
        found += server.kept({"the server's store": Path(config["store_dir"])})
    return found


def judge_leaf_port(
    config: Config, leaf_port: Mapping[str, Any] | Nowhere | None, *, linked: bool
) -> list[Finding]:
    """Judge the hub's leaf port; `linked` if leaves are linked."""
    at = config.nats.leaf_listen
    if leaf_port is None:
        return []
    if isinstance(leaf_port, Nowhere):
        remedy = "start the agent, which runs the server, or correct nats.leaf_listen"
        if leaf_port.why == WANTS_CERTIFICATE:
            return [server.LINK.ok(f"leaves can dial {at}, with a certificate that this check does not have")]
        if linked:
            sentence = f"this check cannot dial {at}, though leaves are linked: {leaf_port.why}"
            return [server.LINK.warning(sentence, remedy)]
        finding = server.LINK.failure(f"no leaf can dial {at}: {leaf_port.why}", remedy, Exit.UNREACHABLE)
        return [finding.after(Cause.AGENT, Cause.SERVER)]
    return [server.LINK.ok(f"leaves can dial {at}"), server.hub_jetstream(leaf_port, contract.HUB_DOMAIN)]
