"""The inputs: one module each. This registry is the only place that names them all; the core is handed what
it needs of it.

An input's options derive from `agent.inputs.options.InputOptions`. An input may have a method
`check() -> list[str]`, called before anything runs, that says what stands in its way on this machine (a taken
port, a missing directory), one sentence a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from msgspec import Struct

from agent.inputs.exec import ExecInput, ExecOptions
from agent.inputs.file import FileInput, FileOptions
from agent.inputs.host import HostInput, HostOptions
from agent.inputs.http import HttpInput, HttpOptions
from agent.inputs.mqtt import MqttInput, MqttOptions
from agent.inputs.nats import LocalServer, NatsInput, NatsOptions
from agent.inputs.prometheus import PrometheusInput, PrometheusOptions
from agent.inputs.socket import SocketInput, SocketOptions
from agent.intake import Input
from agent.metrics import Metrics


class InputKind(NamedTuple):
    """One type of input: the schema of its options, and what makes it from them."""

    options: type[Struct]
    make: Callable[[Any, Metrics], Input]


INPUTS: dict[str, InputKind] = {
    "exec": InputKind(ExecOptions, ExecInput),
    "file": InputKind(FileOptions, FileInput),
    "host": InputKind(HostOptions, HostInput),
    "http": InputKind(HttpOptions, HttpInput),
    "mqtt": InputKind(MqttOptions, MqttInput),
    "nats": InputKind(NatsOptions, NatsInput),
    "prometheus": InputKind(PrometheusOptions, PrometheusInput),
    "socket": InputKind(SocketOptions, SocketInput),
}


def make_inputs(options: Iterable[Any], metrics: Metrics, server: LocalServer) -> list[Input]:
    """The inputs with these options, beside the leaf's own server."""
    made = [INPUTS[one.__struct_config__.tag].make(one, metrics) for one in options]
    for one in made:
        if isinstance(one, NatsInput):
            one.server = server
    return made
