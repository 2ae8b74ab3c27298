"""The fault environment of a round: its configuration follows from what was drawn."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from agent.base.machine import machine_id
from agent.base.nats_server import find_binary
from agent.config import load as load_config
from agent.contract import DEFAULT_CLASS
from agent.demo import plan
from agent.demo.loopback import free_port
from agent.demo.plan import Member
from agent.leaf.inputs import OPTIONS
from agent.server.setup import server_config
from agent.server.workspace import Workspace
from tests.faults.mixed.dimensions import Fault, Headers, Input, Policy, Rule, Scenario, Server
from tests.faults.mixed.senders import (
    METER,
    SUFFIX,
    ForgingDevice,
    LineProtocolDevice,
    MqttLeafDevice,
    PrintingDevice,
    RotatedFileDevice,
    meter,
)
from tests.faults.mixed.site import Site
from tests.faults.mixed.units import OwnServer, Unit, agent_code, supervised
from tests.faults.oracle.journal import Level, Made
from tests.faults.oracle.numbered import VALVE
from tests.faults.report import Case
from tests.faults.tools.disk import small_disk
from tests.faults.world.configs import HubSettings, LeafSettings, external, hub_toml, leaf_toml
from tests.faults.world.devices import DirectDevice, HttpDevice
from tests.faults.world.environment import FaultEnvironment, link_flows
from tests.faults.world.injected_faults import InjectedFaults
from tests.faults.world.load import Load, load
from tests.faults.world.machine import Machine
from tests.faults.world.repeats import ManyHanded, Repeater
from tests.faults.world.scrape import scrapes
from tests.faults.world.senders import MqttDevice, RequestDevice, SocketDevice
from tests.faults.world.tcp_proxy import Link, tcp_proxy
from tests.harness.mqtt_broker import broker_beside, broker_port
from tests.harness.mqtt_client import PASSWORD, USER
from tests.harness.wait import wait_for

_ROUTED = "second"
_DISK_MEBIBYTES = 96
_SMALL = 'max_bytes = "1MiB"'
_LARGE = 'max_bytes = "256MiB"'
_TAGS = {"site": "north"}
_RULES = {
    Rule.NONE: "",
    Rule.DEADBAND: f'[[rule]]\ndevice = "{VALVE}*"\ndeadband = 0.5',
    Rule.TAGS: '[[rule]]\ndevice = "pump-*"\ntags = { site = "north" }',
    Rule.CLASS: f'[[rule]]\ndevice = "pump-2"\nclass = "{_ROUTED}"',
    Rule.DROP: '[[rule]]\ndevice = "pump-*"\nmetric = "m2"\ndrop = true',
}


@contextmanager
def open_site(directory: Path, case: Case, scenario: Scenario) -> Iterator[Site]:
    """A hub and the leaf edge-1, whose link flows, with all senders of the round."""
    injected = InjectedFaults(case)
    with ExitStack() as stack:
        member, hub_member = plan.member(directory, "edge-1"), plan.member(directory, "hub")
        disk = None
        if scenario.has(Fault.DISK_FULL):
            disk = stack.enter_context(small_disk(member.state, _DISK_MEBIBYTES))
            stack.callback(disk.free)
        leaf_port = free_port()
        proxy = stack.enter_context(tcp_proxy(leaf_port))
        sending = load()
        ports = {"mqtt": free_port()}
        settings = _settings(scenario, member, ports)
        url = f"nats-leaf://{proxy.host}:{proxy.port}"
        kind = OwnServer if scenario.server is Server.EXTERNAL else Machine
        leaf = kind(member, leaf_toml(member, url, settings), injected)
        if isinstance(leaf, OwnServer):
            _give_server(leaf)
        hub = Machine(
            hub_member,
            hub_toml(hub_member, f"127.0.0.1:{leaf_port}", [leaf.petiole("enrol").stdout], HubSettings()),
            injected,
        )
        for machine in (hub, leaf):
            stack.callback(machine.close)
        if scenario.input is Input.MQTT:
            stack.enter_context(broker_beside(member))
        if isinstance(leaf, OwnServer):
            leaf.begin_server()
        for machine in (hub, leaf):
            machine.begin()
        for machine in (hub, leaf):
            machine.wait_ready()
        wait_for(lambda: link_flows(leaf), "the link flows")
        devices = stack.enter_context(sending)
        looking = stack.enter_context(scrapes([leaf]))
        injected.observers.insert(0, devices.notes.since)
        classes = [DEFAULT_CLASS, *([_ROUTED] if scenario.rule is Rule.CLASS else [])]
        environment = FaultEnvironment(
            case, hub, [leaf], Link(proxy, injected, [leaf]), devices, looking, classes
        )
        site = Site(environment, scenario, disk, random.Random(scenario.seed))
        stack.callback(site.ended)
        _start_devices(site, ports)
        units = [
            Unit("the hub's agent", lambda: agent_code(hub), hub.begin),
            Unit("the leaf's agent", lambda: agent_code(leaf), leaf.begin, lambda: site.file_is_good),
        ]
        if isinstance(leaf, OwnServer):
            units.append(Unit("the leaf's server", leaf.server_code, leaf.begin_server))
        site.hub_unit, site.agent_unit, *rest = units
        site.server_unit = rest[0] if rest else None
        site.supervisor = stack.enter_context(supervised(units, site.watched))
        devices.flows(2, 90)
        if isinstance(site.pulled, RotatedFileDevice):
            wait_for(lambda: site.newest_number() > 0, "the first lines are stored")
            site.pulled.rotates.set()
        yield site


def _settings(scenario: Scenario, member: Member, ports: dict[str, int]) -> LeafSettings:
    """The leaf's configuration."""
    size = _SMALL if scenario.has(Fault.STREAM_FULL) else _LARGE
    discard = '\ndiscard = "old"' if scenario.policy is Policy.OLD else ""
    second = f'[[class]]\nname = "{_ROUTED}"\n{_LARGE}' if scenario.rule is Rule.CLASS else ""
    thin = '[link]\nprofile = "thin"' if scenario.policy is Policy.THIN else ""
    drain = '[publish]\ndrain = "5s"'
    parts = (_input(scenario, member, ports), second, thin, drain, _RULES[scenario.rule])
    return LeafSettings(
        ack=str(scenario.level), cls=f"{size}{discard}", more="\n\n".join(filter(None, parts))
    )


def _input(scenario: Scenario, member: Member, ports: dict[str, int]) -> str:
    """The table of what the round sends to."""
    ack = f'ack = "{scenario.level}"'
    match scenario.input:
        case Input.SOCKET:
            listen = json.dumps(f"unix://{member.directory / 'lines.sock'}")
            return f'[[input]]\ntype = "socket"\nlisten = {listen}\nreply = true\n{ack}'
        case Input.FILE:
            path = json.dumps(str(member.lines) + "*")
            return f'[[input]]\ntype = "file"\npath = {path}'
        case Input.NATS:
            return f'[[input]]\ntype = "nats"\n{ack}\n[[input.subjects]]\nfilter = "plant.>"'
        case Input.MQTT:
            topics = 'topics = [{ filter = "plant/+/#", device = "{2}", metric = "{3+}" }]'
            url = f"mqtt://127.0.0.1:{broker_port(member)}"
            return f'[[input]]\ntype = "mqtt"\nurl = "{url}"\n{topics}\n{ack}'
        case Input.EXEC:
            command = json.dumps(meter(member))
            return f'[[input]]\ntype = "exec"\ncommand = {command}\n{ack}'
        case Input.MQTT_DEVICE:
            secret = member.directory / "plant.password"
            secret.parent.mkdir(parents=True, exist_ok=True)
            secret.touch(0o600)
            secret.write_text(PASSWORD + "\n")
            users = f'[[nats.mqtt.users]]\nname = "{USER}"\npassword_file = {json.dumps(str(secret))}'
            return f'[nats.mqtt]\nlisten = "127.0.0.1:{ports["mqtt"]}"\n{users}'
    return ""


def _start_devices(site: Site, ports: dict[str, int]) -> None:
    """One over HTTP and one that publishes itself, those of the input, of the rule and of the forger."""
    scenario, devices, leaf = site.scenario, site.environment.load, site.environment.leaf
    member, notes, level = leaf.member, devices.notes, scenario.level
    made = _made(scenario)
    devices.start(HttpDevice(member, *devices.series(member, "pump-1", level, made=made), notes, 10, 0.05))
    devices.start(DirectDevice(member, *devices.series(member, "press-1"), notes, 1, 0.1))
    if scenario.rule is Rule.CLASS:
        series = devices.series(member, "pump-2", level, _ROUTED)
        devices.start(HttpDevice(member, *series, notes, 5, 0.05))
    if scenario.rule is Rule.DEADBAND:
        series = devices.series(member, f"{VALVE}1", level, made=Made(deadband=0.5))
        devices.start(HttpDevice(member, *series, notes, 3, 0.02))
    if scenario.headers is not Headers.HONEST:
        series = devices.series(member, "press-9")
        site.forger = ForgingDevice(leaf, *series, notes, scenario.headers)
        devices.start(site.forger)
    _start_input(site, devices, member, made, ports)


def _start_input(site: Site, devices: Load, member: Member, made: Made, ports: dict[str, int]) -> None:
    scenario, notes = site.scenario, devices.notes
    level = scenario.level
    match scenario.input:
        case Input.HTTP:
            devices.start(
                HttpDevice(member, *devices.series(member, "pump-3", level, made=made), notes, 50, 0.02)
            )
        case Input.HTTP_REPEATED:
            devices.start(Repeater(member, *devices.series(member, "pump-3", level, made=made), notes))
            devices.start(ManyHanded(member, *devices.series(member, "pump-4", level, made=made), notes))
        case Input.LINE_PROTOCOL:
            lined = Made(SUFFIX, made.tags)
            series = devices.series(member, "pump-3", level, made=lined)
            devices.start(LineProtocolDevice(member, *series, notes, 10, 0.05))
        case Input.SOCKET:
            series = devices.series(member, "pump-3", level, made=made)
            devices.start(SocketDevice(member.directory / "lines.sock", *series, notes, 10, 0.05))
        case Input.FILE:
            series = devices.series(member, "pump-3", Level.STORED, made=made)
            site.pulled = RotatedFileDevice(member.lines, *series, notes)
            devices.start(site.pulled)
        case Input.NATS:
            series = devices.series(member, "pump-3", level, made=made)
            devices.start(RequestDevice(member, *series, notes, 10, 0.05))
        case Input.MQTT:
            series = devices.series(member, "pump-3", level, made=made)
            site.pulled = MqttDevice(broker_port(member), *series, notes, 5, 0.05)
            devices.start(site.pulled)
        case Input.EXEC:
            site.printing = PrintingDevice(member, *devices.series(member, METER, made=made), notes)
            site.printing.start()
        case Input.DIRECT:
            for number in (2, 3):
                devices.start(
                    DirectDevice(member, *devices.series(member, f"press-{number}"), notes, 1, 0.02)
                )
        case Input.MQTT_DEVICE:
            devices.start(MqttLeafDevice(ports["mqtt"], *devices.series(member, "press-2"), notes))


def _made(scenario: Scenario) -> Made:
    """What the rule makes of a pump's readings."""
    match scenario.rule:
        case Rule.TAGS:
            return Made(tags=_TAGS)
        case Rule.DROP:
            return Made(dropped="m2")
    return Made()


def _give_server(leaf: OwnServer) -> None:
    """What the agent renders for a server of its own, for a server that is not; a later configuration of the
    leaf says so."""
    config = server_config(load_config(leaf.member.config, OPTIONS), machine_id())
    workspace = Workspace(leaf.member.state / "nats")
    workspace.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    asyncio.run(workspace.write(config, find_binary()))
    leaf.configuration = workspace.configuration
    text = external(leaf.member.config.read_text(), leaf.member.state / "keys")
    leaf.member.config.write_text(text)
