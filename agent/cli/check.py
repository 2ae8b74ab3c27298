"""Implements `petiole check`, which checks machine, server and link with remedies.

Exit codes, by the worst finding: 0 at most warnings; 2 wrong configuration or usage; 3 readings are being
lost; 4 two machines have one domain; 5 a server can't be reached; 1 any other failure.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Annotated, Final

import typer

from agent import contract
from agent.base.listen_sockets import near_host
from agent.cli.checks import (
    Cause,
    Finding,
    Group,
    Level,
    agent_status,
    findings_as_json,
    lines,
    link,
    local_probe,
    local_server,
    machine,
    mqtt,
    outcome,
    server,
    streams,
    without_consequences,
)
from agent.cli.checks.leafnode_probe import dial
from agent.cli.configuration import AsJson, ConfigFile, mistakes, obstacles, read
from agent.cli.configuration import local_server as input_server
from agent.config import Config, ConfigError, listen_address
from agent.config.files import hidden
from agent.config.mirrors import declared
from agent.contract import Exit
from agent.server import link_permissions
from agent.server.dialling import Nowhere
from agent.server.hub_route import route_of
from agent.server.joining import Dialled, shown
from agent.server.permissions import Permissions
from agent.server.setup import link_key_file, taken_ports

_COLOURS: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "red"}

Offline = Annotated[
    bool, typer.Option("--offline", help="Look at the configuration and this machine only; ask no server.")
]


def command(config: ConfigFile, offline: Offline = False, as_json: AsJson = False) -> None:
    """Check whether all is well, and say what to do if it is not. Changes nothing."""
    findings = _examined(config, offline)
    if as_json:
        typer.echo(json.dumps(findings_as_json(findings), indent=2))
    else:
        for line in lines(findings, lambda level, text: typer.style(text, fg=_COLOURS[level])):
            typer.echo(line)
    raise typer.Exit(outcome(findings))


def _examined(path: Path, offline: bool) -> list[Finding]:
    try:
        settings = read(path)
    except ConfigError as error:
        return [
            GROUP.failure(f"{problem.key}: {problem.stood}", problem.remedy, Exit.USAGE)
            for problem in error.found
        ]
    from agent.base import logs

    logs.set_up("error", "console")
    findings = check_offline(settings, path) if offline else asyncio.run(check_online(settings, path))
    return [
        replace(finding, sentence=hidden(finding.sentence), remedy=hidden(finding.remedy))
        for finding in findings
    ]


GROUP: Final = Group("configuration")
_MOST_HUBS: Final = 8


def check_offline(config: Config, path: Path) -> list[Finding]:
    """Run the checks that need no server."""
    now = machine.right_now()
    findings, _ = _judged_configuration(config, path, runs=True)
    findings += [*machine.look(config, now), *machine.look_at_clock(now, None)]
    return without_consequences(findings)


async def check_online(config: Config, path: Path) -> list[Finding]:
    """Query agent, server and hub, and judge; a running part outweighs a failed probe."""
    now = machine.right_now()
    async with asyncio.TaskGroup() as group:
        status = group.create_task(agent_status.ask(config))
        own = group.create_task(local_server.look(config))
        hub = group.create_task(_look_there(config))
        devices = group.create_task(_look_at_devices(config))
    runs = not isinstance(status.result(), str)
    seen, dialled = own.result(), hub.result()
    if not dialled and config.role == "leaf":
        dialled = await _look_where_it_dials(config, seen.system)
    joined = link.first_joined(dialled)
    findings, hindered = _judged_configuration(config, path, runs=runs)
    findings += machine.look(config, now)
    findings += machine.look_at_clock(now, None if joined is None else link.ahead(joined))
    findings += _certificates(dialled, now)
    findings += local_server.judge(config, seen, link.first_greeting(dialled))
    findings += _judged_there(config, seen, dialled)
    return without_consequences(
        [*findings, *devices.result(), *agent_status.judge(status.result(), hindered)]
    )


def _needed_there(config: Config) -> Permissions:
    takes = [
        origin.stream
        for link in declared(config)
        for origin in link.origins
        if origin.domain == contract.HUB_DOMAIN and origin.api
    ]
    return link_permissions.leaf_link(
        config.domain, config.class_names, dict.fromkeys(takes), tenant=config.link.tenant
    )


async def _look_there(config: Config) -> list[Dialled]:
    if config.role != "leaf":
        return []
    async with _relayed(config):
        return await _dial(config, config.nats.hub_urls[:_MOST_HUBS])


@asynccontextmanager
async def _relayed(config: Config) -> AsyncIterator[None]:
    """Relay the link as the agent does, unless an agent does so already."""
    if config.link.resume_port is None:
        yield
        return
    from agent.base.metrics import Metrics
    from agent.server.resume.leaf import LeafRelay

    listening = asyncio.Event()
    listen, urls = listen_address(config.resume_listen), config.nats.hub_urls
    relay = asyncio.create_task(LeafRelay(listen, urls, config.link.resume_port, Metrics()).run(listening))
    opened = asyncio.create_task(listening.wait())
    try:
        await asyncio.wait((relay, opened), return_when=asyncio.FIRST_COMPLETED)
        yield
    finally:
        for task in (relay, opened):
            task.cancel()
        await asyncio.gather(relay, opened, return_exceptions=True)


async def _look_where_it_dials(config: Config, system: local_probe.System | None) -> list[Dialled]:
    """Dial where an external server dials."""
    varz = {} if system is None else system.answers.get("VARZ", {})
    remotes = (varz.get("leaf") or {}).get("remotes") or []
    urls = dict.fromkeys(f"nats-leaf://{url}" for remote in remotes for url in remote.get("urls") or [])
    return await _dial(config, list(urls)[:_MOST_HUBS])


async def _dial(config: Config, urls: Sequence[str]) -> list[Dialled]:
    needed, seed = _needed_there(config), link_key_file(config)
    permissions = Permissions((*needed.publish, link.question(config.domain)), needed.subscribe)
    routes = [route_of(url, config.remote, urls) for url in urls]
    pairs = zip(urls, routes, strict=True)
    return list(await asyncio.gather(*(dial(url, seed, permissions, route) for url, route in pairs)))


async def _look_at_devices(config: Config) -> list[Finding]:
    if not config.nats.mqtt.on:
        return []
    host, port = listen_address(config.nats.mqtt.listen)
    return [await mqtt.look((near_host(host), port), config.nats.mqtt.tls_cert is not None)]


def _certificates(dialled: Sequence[Dialled], now: datetime) -> Iterator[Finding]:
    for probe in dialled:
        if probe.certificate is not None:
            name = f"the certificate of {shown(probe.url)}"
            yield machine.certificate(name, probe.certificate, now).causing(Cause.CERTIFICATE)


def _judged_there(
    config: Config, seen: local_server.LocalServerInfo, dialled: Sequence[Dialled]
) -> list[Finding]:
    leafz = {} if seen.system is None else seen.system.answers.get("LEAFZ", {})
    linked = server.is_linked(leafz)
    if config.role == "hub":
        return local_server.judge_leaf_port(config, seen.leaf_port, linked=linked)
    findings = link.judge(config.domain, config.class_names, _needed_there(config), dialled, linked=linked)
    joined, hub = link.first_joined(dialled), link.first_greeting(dialled)
    if hub is not None:
        findings.append(server.hub_jetstream(hub, contract.HUB_DOMAIN))
        if not isinstance(seen.greeting, Nowhere):
            findings += server.message_sizes(seen.greeting, hub)
    if joined is not None:
        names = link.servers_of_domain(config.domain, joined)
        findings += streams.two_leaves(config.domain, len(names), names)
    if seen.account is not None and seen.account.streams is not None:
        assert not isinstance(seen.greeting, Nowhere)
        info = None if joined is None else joined.info
        findings += streams.twice(seen.account.streams, str(seen.greeting.get("server_name")), info)
    return findings


def _judged_configuration(config: Config, path: Path, *, runs: bool) -> tuple[list[Finding], set[str]]:
    """Return findings on inputs and server on this machine, and the inputs that lack something.

    Listen addresses are checked only if the agent does not run.
    """
    from agent.base.metrics import Metrics
    from agent.leaf.inputs import make_inputs

    inputs = make_inputs(config.input, Metrics(), input_server(config))
    waiting = [
        input_ for input_, options in zip(inputs, config.input, strict=True) if not (runs and options.listens)
    ]
    wrong = _failures(mistakes(inputs), Exit.USAGE)
    in_the_way = {input_.name: obstacles([input_]) for input_ in waiting}
    lacking = [*([] if runs else taken_ports(config)), *chain.from_iterable(in_the_way.values())]
    findings = [*(wrong or [GROUP.ok(f"{path} can be used")]), *_failures(lacking, Exit.FAILED)]
    return findings, {name for name, sentences in in_the_way.items() if sentences}


def _failures(sentences: Iterable[str], code: Exit) -> list[Finding]:
    findings = []
    for sentence in sentences:
        stood, _, remedy = sentence.partition("; ")
        findings.append(GROUP.failure(stood, remedy or "put that right", code))
    return findings
