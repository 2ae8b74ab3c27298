"""Every header that a program with a key of the leaf may put into a message: those of the contract, found in
`agent.contract` itself, and those that nats-server obeys. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Final

from agent.contract import batch

STREAM: Final = "TEL_edge-1_normal"
FOREIGN: Final = "edge-9"
_PETIOLE: Final[Mapping[str, tuple[str, ...]]] = {
    "Petiole-Version": ("0", "1", "99", "x"),
    "Petiole-Count": ("0", "-1", "1", "35", "2147483648", "9" * 40, "x"),
    "Petiole-Sealed-At": ("0", "1", "9" * 19, "x"),
    "Petiole-Clock": ("yes", "{}", "1"),
    "Petiole-Position": ("{}", "[]", "x", '{"v":1}'),
    "Petiole-Requests": ("pump-1-1-1", "pump-1-1-1:10:0", "[]", "{}", "x" * 4096),
    "Petiole-Request-Digests": ("x", "0" * 32),
    "Petiole-Resent": ("1", "9" * 19, "x"),
    "Content-Type": ("application/x-ndjson", "x"),
    "Content-Encoding": ("zstd", "gzip", "x"),
    "Nats-Msg-Id": (f"{'0' * 8}-0000-7000-8000-{'0' * 12}-normal-1", "x"),
    "Nats-Stream-Source": (
        f"TEL_{FOREIGN}_normal 1 > > tel.{FOREIGN}.normal.a.b 0",
        f"{STREAM} 9999999 > > tel.edge-1.normal.a.b 0",
        "x",
    ),
}
"""Values of each header of the contract."""
SERVER: Final[tuple[Mapping[str, str], ...]] = (
    {"Nats-Rollup": "all"},
    {"Nats-Rollup": "sub"},
    {"Nats-TTL": "1s"},
    {"Nats-TTL": "never"},
    {"Nats-Expected-Stream": "TELEMETRY_0"},
    {"Nats-Expected-Stream": STREAM},
    {"Nats-Expected-Last-Sequence": "1"},
    {"Nats-Expected-Last-Subject-Sequence": "1"},
    {"Nats-Expected-Last-Subject-Sequence": "1", "Nats-Expected-Last-Subject-Sequence-Subject": "tel.>"},
    {"Nats-Expected-Last-Msg-Id": "x"},
    {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "tel.edge-1.normal.x.y"},
    {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": "tel.edge-1.normal._batch.http"},
    {"Nats-Scheduler": "x", "Nats-Schedule-Next": "purge"},
    {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
    {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"},
    {"Nats-Incr": "1"},
    {"Nats-Counter-Sources": "{}"},
    {"Nats-Marker-Reason": "MaxAge"},
    {"Nats-Required-Api-Level": "999"},
    {"Nats-Stream": "TELEMETRY_0", "Nats-Sequence": "1", "Nats-Subject": f"tel.{FOREIGN}.normal.a.b"},
    {"Nats-Num-Pending": "0", "Nats-Last-Sequence": "9999999", "Status": "404"},
    {"Nats-Response-Type": "error"},
    {"Nats-Trace-Dest": "tel.edge-1.normal._batch.http"},
    {"Nats-Trace-Dest": "tel.edge-1.normal._ledger", "Nats-Trace-Only": "true"},
    {"Nats-Trace-Dest": "petiole.v1.verify.edge-1"},
    {"Nats-Trace-Dest": "$JS.API.STREAM.PURGE.TEL_edge-1_normal"},
    {"Nats-Msg-Size": "0"},
)
"""Headers that nats-server reads, as it is known to."""


_OBEYED: Final = {
    *("Nats-Stream-Source", "Nats-Rollup", "Nats-TTL", "Nats-Schedule", "Nats-Scheduler", "Nats-Batch-Id"),
    *("Nats-Incr", "Nats-Trace-Dest", "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Msg-Id"),
    "Nats-Expected-Last-Subject-Sequence",
}


def obeyed(headers: Mapping[str, str]) -> bool:
    """Whether a stream of a leaf, or its server, refuses a message because of these: they would have it do
    something, or expect of it what is not so."""
    return bool(_OBEYED & headers.keys()) or headers.get("Nats-Expected-Stream", STREAM) != STREAM


def of_contract(module: ModuleType = batch) -> set[str]:
    """The headers that the contract names."""
    return {
        value
        for name, value in inspect.getmembers(module)
        if name.startswith("H_") and isinstance(value, str)
    }


def forged() -> Iterator[Mapping[str, str]]:
    """One message each; those of the contract also in another spelling, as a server compares them in places
    without case."""
    for name in sorted(of_contract() | {*_PETIOLE}):
        for value in _PETIOLE.get(name, ("x",)):
            yield {name: value}
            yield {name.lower(): value}
    yield from SERVER


def not_thought_of() -> set[str]:
    """Headers of the contract for which no value is tried."""
    return of_contract() - {*_PETIOLE}
