"""More than an input of a leaf takes, while its agent is killed, and a reload under load."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path

from tests.faults.matrix.conftest import Worlds
from tests.faults.matrix.test_processes import ended_and_back
from tests.faults.oracle.judge import Terms
from tests.faults.report import Case
from tests.faults.world.configs import LeafSettings
from tests.faults.world.environment import FaultEnvironment
from tests.faults.world.injected_faults import Trace
from tests.faults.world.senders import FileDevice, MqttDevice, RequestDevice, SocketDevice, stored_from
from tests.harness.mqtt_broker import broker_beside, broker_port
from tests.harness.wait import wait_for

WHOLE = "what is not taken is refused in words, and nothing acknowledged is lost or doubled"
LONG = Terms(seconds=180)
SENDERS = range(1, 5)
CROWD, ALLOWED = 40, 16
"""Connections."""


def refusals(w: FaultEnvironment, code: int) -> Trace:
    """How many were refused with a code from a moment on."""

    def trace(since: float) -> str | None:
        told = [text for at, one, text in w.load.notes.refused if one == code and at >= since]
        return f"{len(told)} times {code}: {told[0].strip()[:120]}" if told else None

    return trace


def acknowledged(w: FaultEnvironment, what: str) -> Trace:
    """How many readings of the flood were acknowledged."""

    def trace(_since: float) -> str | None:
        flood = [one for series, one in w.load.journal.series.items() if series.device.startswith("flood-")]
        count = sum(one.acknowledged for one in flood)
        return f"{count:,} readings were taken as {what}" if count else None

    return trace


def all_stored(w: FaultEnvironment, input_name: str, count: int) -> None:
    """The leaf's stream holds all readings of an input."""
    wait_for(lambda: stored_from(w.leaf.member, input_name) >= count, f"{count} readings are stored", 240)


def killed_and_judged(w: FaultEnvironment) -> None:
    """The agent is killed over the flood; all goes on, and every promise was kept."""
    w.leaf.agent.kill()
    ended_and_back(w, w.leaf)
    w.load.flows(3, 180)
    w.load.stop(180)
    w.mended(180)
    w.verdict(LONG)


def crowd(port: int, size: int) -> list[str]:
    """Open so many connections at once; the status lines that come unasked."""
    with ExitStack() as stack:
        address = ("127.0.0.1", port)
        many = [stack.enter_context(socket.create_connection(address, 10)) for _ in range(size)]
        wait_for(lambda: len(select.select(many, (), (), 0)[0]) >= size - ALLOWED, "the others are told")
        readable = select.select(many, (), (), 0)[0]
        return [one.recv(100).split(b"\r\n")[0].decode() for one in readable]


def test_a_flood_of_requests_over_http(world_of: Worlds, case: Case) -> None:
    case.expected = f"503 beyond the bodies and the connections that are allowed; {WHOLE}"
    limits = f'buffer = "700KiB"\nbody = "400KiB"\nmax_connections = {ALLOWED}'
    with world_of(devices=0, leaf=LeafSettings(http=limits)) as w:
        w.injected.add("four senders post 300 kB at a time, 700 kB are allowed", refusals(w, 503))
        for number in SENDERS:
            w.load.over_http(w.leaf.member, f"flood-{number}", size=2000, pace=0.0)
        w.load.flows(2, 180)
        told = crowd(w.leaf.member.http_port, CROWD)
        w.injected.add(
            f"{CROWD} connections are opened beside them, {ALLOWED} are allowed",
            lambda _since: f"{len(told)} were told {told[0]}" if told else None,
        )
        w.load.flows(1, 180)
        killed_and_judged(w)


def test_a_flood_of_groups_over_a_socket(world_of: Worlds, case: Case, tmp_path: Path) -> None:
    case.expected = f"senders wait, or are told when to try again; {WHOLE}"
    path = tmp_path / "edge-1" / "lines.sock"
    limits = 'reply = true\nbuffer = "1MiB"\nmax_connections = 8'
    more = f'[[input]]\ntype = "socket"\nlisten = "unix://{path}"\n{limits}'
    with world_of(devices=1, leaf=LeafSettings(more=more)) as w:
        w.injected.add("four senders hand in group after group", acknowledged(w, "groups of 700 readings"))
        for number in SENDERS:
            series = w.load.series(w.leaf.member, f"flood-{number}")
            w.load.start(SocketDevice(path, *series, w.load.notes, size=700, pace=0.0))
        w.load.flows(3, 180)
        killed_and_judged(w)


def test_a_flood_of_requests_over_nats(world_of: Worlds, case: Case) -> None:
    case.expected = f"requests beyond what may wait are refused; {WHOLE}"
    more = '[[input]]\ntype = "nats"\npending = "256KiB"\n[[input.subjects]]\nfilter = "plant.>"'
    with world_of(devices=1, leaf=LeafSettings(more=more)) as w:
        w.injected.add("four programs send requests of 150 kB, 256 KiB may wait", refusals(w, 503))
        for number in SENDERS:
            series = w.load.series(w.leaf.member, f"flood-{number}")
            w.load.start(RequestDevice(w.leaf.member, *series, w.load.notes, size=1000, pace=0.0))
        w.load.flows(3, 180)
        killed_and_judged(w)


def test_a_flood_of_messages_to_the_server_of_a_leaf(world_of: Worlds, case: Case) -> None:
    case.expected = f"the server takes them without the agent as well; {WHOLE}"
    with world_of(devices=1) as w:
        w.injected.add("four programs publish as fast as they can", acknowledged(w, "messages"))
        for number in SENDERS:
            w.load.direct(w.leaf.member, f"flood-{number}", pace=0.0)
        w.load.flows(100, 180)
        killed_and_judged(w)


def test_a_burst_of_lines_in_a_file(world_of: Worlds, case: Case, tmp_path: Path) -> None:
    case.expected = f"every line is stored once, also over a kill; {WHOLE}"
    path = tmp_path / "edge-1" / "lines.ndjson"
    more = f'[[input]]\ntype = "file"\npath = "{path}"'
    with world_of(devices=1, leaf=LeafSettings(more=more)) as w:
        one = FileDevice(path, *w.load.series(w.leaf.member, "flood-1"), w.load.notes, size=20_000, pace=0.0)
        w.injected.add("60,000 lines are appended at once", acknowledged(w, "lines"))
        w.load.start(one)
        wait_for(lambda: one.sent.acknowledged >= 60_000, "the lines are written")
        one.end()
        wait_for(lambda: stored_from(w.leaf.member, "file") > 0, "the first lines are stored")
        w.leaf.agent.kill()
        ended_and_back(w, w.leaf)
        w.load.stop()
        all_stored(w, "file", one.sent.acknowledged)
        w.mended(180)
        w.verdict(LONG)


def test_a_flood_of_messages_from_a_broker(world_of: Worlds, case: Case) -> None:
    case.expected = f"the broker keeps what is not stored, also over a kill; {WHOLE}"
    with world_of(devices=1) as w, broker_beside(w.leaf.member):
        port = broker_port(w.leaf.member)
        text = w.leaf.member.config.read_text()
        w.leaf.member.config.write_text(
            f'{text}\n[[input]]\ntype = "mqtt"\nurl = "mqtt://127.0.0.1:{port}"\n'
            'topics = [{ filter = "plant/+/#", device = "{2}", metric = "{3+}" }]\n'
        )
        case.begins()
        w.leaf.end_well()
        w.leaf.start()
        one = MqttDevice(port, *w.load.series(w.leaf.member, "flood-1"), w.load.notes, size=2000, pace=0.0)
        w.injected.add("a broker hands on 12,000 messages at once", acknowledged(w, "messages"))
        w.load.start(one)
        wait_for(lambda: one.sent.acknowledged >= 6_000, "the broker has half of them")
        w.leaf.agent.kill()
        wait_for(lambda: one.sent.acknowledged >= 12_000, "the broker has all")
        one.end()
        ended_and_back(w, w.leaf)
        all_stored(w, "mqtt", one.sent.acknowledged)
        w.load.stop()
        all_stored(w, "mqtt", one.sent.acknowledged)
        w.mended(180)
        w.verdict(LONG)


def taken(w: FaultEnvironment, text: str, event: str = "configuration reloaded") -> None:
    """Give the agent of the leaf another configuration; returns when it has told what it makes of it."""
    pid, since = w.leaf.agent.pid, time.time()
    assert pid is not None
    w.leaf.member.config.write_text(text)

    def told(from_: float) -> str | None:
        found = w.leaf.said(from_, event=event)
        return f"{event}: {found[0][1].get('what') or found[0][1].get('reason')}" if found else None

    w.injected.add("the configuration is changed and the agent reloads", told)
    os.kill(pid, signal.SIGHUP)
    wait_for(lambda: told(since) is not None, event)
    w.load.flows(5)


def test_the_configuration_is_reloaded_under_load(world_of: Worlds, case: Case, tmp_path: Path) -> None:
    case.expected = f"inputs and the agent begin anew, a bad file changes nothing; {WHOLE}"
    with world_of(pace=0.0) as w:
        text = w.leaf.member.config.read_text()
        more = f'\n[[input]]\ntype = "file"\npath = "{tmp_path / "lines.ndjson"}"\n'
        for _ in range(2):
            for changed in (
                text.replace('ack = "stored"', 'ack = "stored"\ntimeout = "29s"'),
                text + more,
                text.replace('max_bytes = "256MiB"', 'max_bytes = "300MiB"'),
                f'{text}\n[publish]\nlinger = "20ms"\n',
                text,
            ):
                taken(w, changed)
            taken(w, text + 'colour = "red"\n', "configuration rejected; the agent goes on with the old one")
            taken(w, text)
        w.mended()
        w.verdict(LONG)
