"""The inputs: one module each. This registry is the only place that names them all; the core is handed what
it needs of it. A module is imported when an input of its type is configured: an agent holds in memory only
what it speaks.

An input's options derive from `agent.leaf.inputs.shared.options.InputOptions`. An input may have two methods
that say what is wrong before it runs, one sentence a problem: `check() -> list[str]` names options that can't
be used until a person changes them, and looks at nothing else; `obstacles() -> list[str]` names what stands
in its way on this machine now and may go by itself (a taken port, a missing directory, a token that is not
there yet). With an obstacle the agent starts, and the input is tried again until it runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct

from agent.base.metrics import Metrics
from agent.leaf.inputs.shared.options import LocalServer
from agent.leaf.intake import Input


class _Kind(NamedTuple):
    """One type of input: in its module, the schema of its options and the class that is made from them."""

    options: str
    made: str


_KINDS: Final = {
    "exec": _Kind("ExecOptions", "ExecInput"),
    "file": _Kind("FileOptions", "FileInput"),
    "host": _Kind("HostOptions", "HostInput"),
    "http": _Kind("HttpOptions", "HttpInput"),
    "mqtt": _Kind("MqttOptions", "MqttInput"),
    "nats": _Kind("NatsOptions", "NatsInput"),
    "prometheus": _Kind("PrometheusOptions", "PrometheusInput"),
    "socket": _Kind("SocketOptions", "SocketInput"),
}


class _Options(Mapping[str, type[Struct]]):
    def __getitem__(self, kind: str) -> type[Struct]:
        found: type[Struct] = _find(kind, _KINDS[kind].options)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(_KINDS)

    def __len__(self) -> int:
        return len(_KINDS)

    def __contains__(self, kind: object) -> bool:
        return kind in _KINDS


OPTIONS: Final[Mapping[str, type[Struct]]] = _Options()
"""The schema of the options of each type of input."""


def make_inputs(options: Iterable[Any], metrics: Metrics, server: LocalServer) -> list[Input]:
    """The inputs with these options, beside the leaf's own server."""
    made = []
    for one in options:
        kind = one.__struct_config__.tag
        input_ = _find(kind, _KINDS[kind].made)(one, metrics)
        if kind == "nats":
            input_.server = server
        made.append(input_)
    return made


def _find(kind: str, name: str) -> Any:
    return getattr(importlib.import_module(f"agent.leaf.inputs.{kind}"), name)
