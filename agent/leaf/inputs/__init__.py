"""Registers all built-in inputs, a folder each.

To add an input make a folder with options (`InputOptions`) in `__init__.py` and the input (`ConfiguredInput`)
in `input.py`, both from `agent.leaf.inputs.shared`. Add a line to `_INPUTS` and a row to docs/inputs.md. A
folder is imported only when configured. Other types come from installed packages (`plugins.py`).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

from agent.base.metrics import Metrics
from agent.leaf.inputs.shared import ConfiguredInput, InputOptions, LocalServer


class _Classes(NamedTuple):
    """Class names of an input."""

    options: str
    input: str


_INPUTS: Final = {
    "exec": _Classes("ExecOptions", "ExecInput"),
    "file": _Classes("FileOptions", "FileInput"),
    "host": _Classes("HostOptions", "HostInput"),
    "http": _Classes("HttpOptions", "HttpInput"),
    "modbus": _Classes("ModbusOptions", "ModbusInput"),
    "mqtt": _Classes("MqttOptions", "MqttInput"),
    "nats": _Classes("NatsOptions", "NatsInput"),
    "opcua": _Classes("OpcuaOptions", "OpcuaInput"),
    "otlp_grpc": _Classes("OtlpGrpcOptions", "OtlpGrpcInput"),
    "prometheus": _Classes("PrometheusOptions", "PrometheusInput"),
    "socket": _Classes("SocketOptions", "SocketInput"),
    "syslog": _Classes("SyslogOptions", "SyslogInput"),
}
"""By `type` of an `[[input]]`."""


class _OptionTypes(Mapping[str, type[InputOptions]]):
    def __getitem__(self, kind: str) -> type[InputOptions]:
        if kind not in _INPUTS:
            from agent.leaf.inputs.plugins import load_options  # not held in memory where none is named

            return load_options(kind, _INPUTS)
        return cast(type[InputOptions], _load(kind, _INPUTS[kind].options))

    def __iter__(self) -> Iterator[str]:
        return iter(_INPUTS)

    def __len__(self) -> int:
        return len(_INPUTS)

    def __contains__(self, kind: object) -> bool:
        return kind in _INPUTS


OPTIONS: Final[Mapping[str, type[InputOptions]]] = _OptionTypes()
"""The options schema of each input type. Iterates over built-in types; lookup includes installed packages.

Raises `UnusableTypeError` for an unknown type or an unusable package.
"""


def make_inputs(
    options: Iterable[InputOptions], metrics: Metrics, server: LocalServer
) -> list[ConfiguredInput[Any]]:
    """Make the inputs; `server` is the leaf's own."""
    return [_make_input(input_options, metrics, server) for input_options in options]


def _make_input(options: InputOptions, metrics: Metrics, server: LocalServer) -> ConfiguredInput[Any]:
    kind = str(options.__struct_config__.tag)
    if kind not in _INPUTS:
        from agent.leaf.inputs.plugins import make_input

        return make_input(options, metrics, server)
    input_class = cast(type[ConfiguredInput[Any]], _load(f"{kind}.input", _INPUTS[kind].input))
    return input_class(options, metrics, server)


def _load(module: str, name: str) -> object:
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
