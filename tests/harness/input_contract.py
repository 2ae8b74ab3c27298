"""The built-in inputs as the contract suite must know them. An input that is added joins by one case in
`INPUTS`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from agent.demo.plan import Member
from agent.testing.agent_process import AgentProcess
from agent.testing.input_case import InputCase
from tests.harness.input_senders import (
    append,
    append_once,
    ask_once,
    ask_until_stored,
    export_once,
    export_until_stored,
    flow,
    flow_once,
    grpc_address,
    lines,
    post_once,
    post_until_stored,
    publish_numbers,
    publish_once,
    say_once,
    say_until_stored,
    write_node_once,
    write_nodes,
    write_remotely_once,
    write_remotely_until_stored,
)
from tests.harness.mqtt_broker import broker_beside, broker_port
from tests.harness.plant_servers import modbus_beside, modbus_port, opcua_beside, opcua_server
from tests.harness.sparkplug_node import ADDED, node_beside, report, report_once, sparkplug_toml
from tests.harness.syslog import send_once, send_until_stored, syslog_toml

LARGE = 300 * 1024
"""Bytes of a reading that is above every limit of the cases."""


def _noise(send: Callable[[AgentProcess, bytes], object]) -> Callable[[AgentProcess, str], object]:
    """Hands in a reading of noise, as a line."""
    return lambda agent, text: send(agent, lines([0], text).replace(b'"metric": "n"', b'"metric": "noise"'))


def _mqtt_toml(member: Member) -> str:
    topics = '[{ filter = "plant/+/#", device = "{2}", metric = "{3+}" }]'
    return f'type = "mqtt"\nurl = "mqtt://127.0.0.1:{broker_port(member)}"\ntopics = {topics}\n'


def _opcua_toml(member: Member) -> str:
    nodes = '[{ path = "Line?/*", device = "d", metric = "{2}" }]'
    url = opcua_server(member).url
    return f'type = "opcua"\nurl = "{url}"\nnodes = {nodes}\npublish = "50ms"\nqueue = 1000\n'


_PRINTS = [
    sys.executable,
    "-S",
    "-c",
    """import os; print('{"metric": "n", "value": 1, "tags": {"noise": "%s"}}' % os.urandom(3000).hex())""",
]
_LARGE_LINE = lines([-1], "x" * LARGE)
_NO_READING = b'{"metric": "n"}\n'

INPUTS = {
    case.name: case._replace(fill=None if case.send is None else _noise(case.send))
    for case in (
        InputCase(
            "http",
            lambda member: f'type = "http"\nlisten = "127.0.0.1:{member.http_port}"\nbody = "256KiB"\n',
            post_until_stored,
            post_once,
            ((_NO_READING, "bad_lines"), (b"\xff\x00{[\n", "bad_lines"), (_LARGE_LINE, "too_large")),
        ),
        InputCase(
            "remote",
            lambda member: (
                f'type = "http"\nname = "remote"\nlisten = "127.0.0.1:{member.http_port}"\nbody = "256KiB"\n'
                "remote_write = true\n"
            ),
            write_remotely_until_stored,
            write_remotely_once,
            (
                (b'{"value": 1}', "rejected_samples"),
                (b"\xff\x00{[\n", "protobuf"),
                (_LARGE_LINE, "too_large"),
            ),
        ),
        InputCase(
            "otlp_grpc",
            lambda member: (
                f'type = "otlp_grpc"\nlisten = "{grpc_address(member)}"\nbody = "256KiB"\nbuffer = "16MiB"\n'
            ),
            export_until_stored,
            export_once,
            ((b"nan", "rejected_points"), (b"\xff\x00{[\n", "otlp"), (_LARGE_LINE, "too_large")),
        ),
        InputCase(
            "file",
            lambda member: f'type = "file"\npath = {json.dumps(str(member.lines))}\npoll = "20ms"\n',
            append,
            append_once,
            ((_NO_READING, "bad_line"), (b"\xff\x00{[\n", "bad_line"), (_LARGE_LINE, "too_long")),
        ),
        InputCase(
            "socket",
            lambda member: (
                f'type = "socket"\nlisten = "unix://{member.directory}/lines.sock"\nreply = true\n'
            ),
            say_until_stored,
            say_once,
            ((_NO_READING, "bad_lines"), (b"\xff\x00{[\n", "bad_lines"), (_LARGE_LINE, "too_long")),
        ),
        InputCase(
            "syslog",
            syslog_toml,
            send_until_stored,
            send_once,
            ((_NO_READING, "bad_line"), (b"\xff\x00{[\n", "bad_line"), (_LARGE_LINE, "too_long")),
        ),
        InputCase(
            "flow",
            lambda member: (
                f'type = "socket"\nname = "flow"\nlisten = "unix://{member.directory}/lines.sock"\n'
            ),
            flow,
            flow_once,
            ((_NO_READING, "bad_line"), (b"\xff\x00{[\n", "bad_line"), (_LARGE_LINE, "too_long")),
            acknowledges=False,
        ),
        InputCase("exec", lambda _: f'type = "exec"\ninterval = "250ms"\ncommand = {json.dumps(_PRINTS)}\n'),
        InputCase(
            "mqtt",
            _mqtt_toml,
            publish_numbers,
            publish_once,
            ((_NO_READING, "bad_message"), (b"\xff\x00{[\n", "bad_message"), (_LARGE_LINE, "bad_message")),
            broker_beside,
        ),
        InputCase(
            "sparkplug",
            sparkplug_toml,
            report,
            report_once,
            ((b"\xff\x00{[\n", "bad_message"), (b"bytes", "unsupported_type")),
            node_beside,
            ADDED,
        ),
        InputCase(
            "modbus",
            lambda member: (
                f'type = "modbus"\nurl = "tcp://127.0.0.1:{modbus_port(member)}"\ninterval = "100ms"\n'
                'registers = [{ metric = "r{address}", address = 0, count = 40 }]\n'
            ),
            beside=modbus_beside,
        ),
        InputCase(
            "opcua",
            _opcua_toml,
            write_nodes,
            write_node_once,
            ((b"broken", "bad_value"), (b"wave", "bad_value")),
            opcua_beside,
        ),
        InputCase(
            "prometheus",
            lambda member: (
                f'type = "prometheus"\nurls = ["{member.admin_url}/metrics"]\n'
                'interval = "300ms"\ntimeout = "300ms"\n'
            ),
        ),
        InputCase(
            "nats",
            lambda _: 'type = "nats"\n[[input.subjects]]\nfilter = "plant.>"\n',
            ask_until_stored,
            ask_once,
            ((_NO_READING, "bad_message"), (b"\xff\x00{[\n", "bad_message"), (_LARGE_LINE, "bad_message")),
        ),
        InputCase("host", lambda _: 'type = "host"\ninterval = "100ms"\n'),
    )
}
