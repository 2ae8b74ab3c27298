"""What rules cost at the edge: readings a CPU-second of validating, applying rules and compressing, in one
thread and without sockets or a server. Beside each the same without rules, for which their code is not even
there; all in turns, the median of nine, so that what else the machine does meets all alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import zstandard

from agent.config import Rule, Seconds
from agent.leaf.inputs.formats.ndjson import decode_ndjson
from agent.leaf.rules import Rulebook
from agent.leaf.rules.deadbands import Deadbands
from agent.leaf.rules.split import Splitter
from bench.result import Against, Result, Row

LINES = 500
_TURNS = 9
_SECONDS = 0.4
_METRICS = 10
_UNIT = "readings/CPU-second"
_ELSEWHERE = [Rule(metric=f"other_{number}_*", class_="critical") for number in range(5)]
"""Rules that match nothing here, so that every line goes on as it came."""
_MIXED = [
    Rule(metric="metric_0", class_="critical"),
    Rule(metric="metric_1", drop=True),
    Rule(metric="metric_2", tags={"site": "north"}),
    Rule(metric="metric_3", deadband=0.5, after=Seconds(60.0)),
    Rule(device="press-*", class_="bulk"),
]
"""Of ten metrics one is routed, one dropped, one tagged and one under a deadband."""


def run() -> Result:
    cases = {
        "1 rule that matches nothing": _ELSEWHERE[:1],
        "5 rules that match nothing": _ELSEWHERE,
        "1 rule that routes a tenth": _MIXED[:1],
        "5 rules: a tenth each is routed, dropped, tagged, under a deadband": _MIXED,
    }
    ways = {what: _applied(rules) for what, rules in cases.items()}
    ways["no rules"] = lambda payload, _now: payload
    turns = [{what: _measure(apply) for what, apply in ways.items()} for _ in range(_TURNS)]
    found = {what: median(turn[what] for turn in turns) for what in ways}
    none = found.pop("no rules")
    against = Against("without rules", none)
    rows = [Row(what, rate, _UNIT, None, against) for what, rate in found.items()]
    return Result("rules", [Row("no rules", none, _UNIT), *rows])


def _applied(rules: list[Rule]) -> Callable[[bytes, float], bytes]:
    deadbands = Deadbands()
    splitter = Splitter(Rulebook(rules, "http"), deadbands)

    def apply(payload: bytes, now: float) -> bytes:
        split = splitter.split(payload, "normal", now)
        if split.as_it_is is not None:
            return payload
        for one in split.routed:
            deadbands.settle(deadbands.begin(one.moves), 1)
        return b"".join(one.payload for one in split.routed)

    return apply


def _measure(apply: Callable[[bytes, float], bytes]) -> float:
    compressor = zstandard.ZstdCompressor(level=3)
    body = _body()
    done, began = 0, time.thread_time()
    while (spent := time.thread_time() - began) < _SECONDS:
        compressor.compress(apply(decode_ndjson(body, "edge-1", time.time_ns()).payload, time.monotonic()))
        done += LINES
    return done / spent


def _body() -> bytes:
    return b"".join(
        b'{"ts":%d.%03d,"device":"pump-%d","metric":"metric_%d","value":%d.25,"tags":{"line":"a","unit":"C"}}\n'
        % (1_763_700_000 + number, number, number % 7, number % _METRICS, number % 90)
        for number in range(LINES)
    )
