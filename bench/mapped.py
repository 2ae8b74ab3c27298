"""What a mapping costs at the edge: readings a CPU-second from an uplink of ChirpStack v4, decoded, mapped
and ready to store, without sockets or a server. Beside it the same readings where no mapping is needed, and
Telegraf's parser `json_v2` (bench/json_v2.go) with its line protocol; all in turns, the median of nine."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from agent.leaf.inputs.formats import split_valid
from agent.leaf.inputs.formats.message import TopicNames, message_lines
from agent.leaf.inputs.formats.ndjson import decode_ndjson
from agent.mapping.compiled import compile_map
from agent.mapping.schema import Map, MapRecord
from bench.result import Against, Failed, Result, Row, reason
from bench.telegraf import VERSION, json_v2

_TURNS: Final = 9
_SECONDS: Final = 0.4
_AT_ONCE: Final = 100
_UNIT: Final = "readings/CPU-second"
_TOPIC: Final = "application/17c82e96/device/0101010101010101/event/up"
_UP: Final[dict[str, Any]] = {
    "deduplicationId": "3ac7e3c4-4401-4b8d-9386-a5c902f9202d",
    "time": "2022-07-18T09:34:15.775023242+00:00",
    "deviceInfo": {
        "tenantId": "52f14cd4-c6f1-4fbd-8f87-4025e1d49242",
        "tenantName": "ChirpStack",
        "applicationId": "17c82e96-be03-4f38-aef3-f83d48582d97",
        "applicationName": "Test application",
        "deviceProfileId": "14855bf7-d10d-4aee-b618-ebfcb64dc7ad",
        "deviceProfileName": "Test device-profile",
        "deviceName": "Test device",
        "devEui": "0101010101010101",
        "tags": {"key": "value"},
    },
    "devAddr": "00189440",
    "dr": 1,
    "fPort": 1,
    "data": "qg==",
    "object": {"temperature": 21.5, "humidity": 40, "battery": 3.6, "alarm": False, "pressure": 1013.2},
    "rxInfo": [
        {
            "gatewayId": "0016c001f153a14c",
            "uplinkId": 4217106255,
            "rssi": -36,
            "snr": 10.5,
            "context": "E3OWOQ==",
            "metadata": {"region_name": "eu868", "region_common_name": "EU868"},
        }
    ],
    "txInfo": {
        "frequency": 867100000,
        "modulation": {"lora": {"bandwidth": 125000, "spreadingFactor": 11, "codeRate": "CR_4_5"}},
    },
}
"""As in ChirpStack's documents, with five decoded values."""

_MAP: Final = Map(
    name="up",
    device="{$.deviceInfo.devEui}",
    time="$.time",
    record=[
        MapRecord(values="object"),
        MapRecord(at="rxInfo", take=["rssi", "snr"], tags={"gatewayId": "{gatewayId}"}),
    ],
)
"""What Telegraf is set up for; the preset makes nine readings of the uplink, not seven."""


def run() -> Result:
    payload = json.dumps(_UP, separators=(",", ":")).encode()
    mapping = compile_map(_MAP, "edge-1")
    preset = compile_map(Map(name="up", preset="chirpstack"), "edge-1")
    now = time.time_ns()
    mapped = mapping.apply(payload, now, _TOPIC)
    flat = json.dumps({**_UP["object"], "rssi": -36, "snr": 10.5}).encode()
    names = TopicNames("0101010101010101")
    ways: dict[str, Callable[[], int]] = {
        "mapped": lambda: mapping.apply(payload, now, _TOPIC).count,
        "preset": lambda: preset.apply(payload, now, _TOPIC).count,
        "flat": lambda: split_valid(b"\n".join(message_lines(flat, names)), "edge-1", now).count,
        "lines": lambda: decode_ndjson(mapped.payload, "edge-1", now).count,
    }
    sides: dict[str, Callable[[], float]] = {way: partial(_measure, apply) for way, apply in ways.items()}
    failed = []
    with tempfile.NamedTemporaryFile() as file, ExitStack() as running:
        file.write(payload)
        file.flush()
        try:
            sides["telegraf"] = running.enter_context(_telegraf(json_v2(), Path(file.name)))
        except RuntimeError as error:
            failed.append(Failed("Telegraf's json_v2", reason(error)))
        turns = [{side: measure() for side, measure in sides.items()} for _ in range(_TURNS)]
    found = {side: [turn[side] for turn in turns] for side in sides}
    by_flat = Against("the same values as a flat object of MQTT", found["flat"])
    what = "an uplink of ChirpStack, mapped"
    rows = [
        Row(what, found["mapped"], _UNIT, 0.5, by_flat),
        Row(what, found["mapped"], _UNIT, None, Against("the same readings as NDJSON", found["lines"])),
        Row("the same by the preset", found["preset"], _UNIT, 0.5, by_flat),
    ]
    if "telegraf" in found:
        telegraf = Against(f"Telegraf {VERSION}, json_v2", found["telegraf"])
        rows.append(Row(what, found["mapped"], _UNIT, 1.0, telegraf))
        rows.append(Row("the same by the preset", found["preset"], _UNIT, None, telegraf))
    return Result("mapped", rows, failed=failed)


@contextmanager
def _telegraf(program: Path, payload: Path) -> Iterator[Callable[[], float]]:
    """Yield what measures Telegraf's parser once."""
    command = [str(program), str(payload)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def measure() -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{_SECONDS}\n")
            process.stdin.flush()
            fields, spent = process.stdout.readline().split()
            return int(fields) / float(spent)

        yield measure
        assert process.stdin is not None
        process.stdin.close()


def _measure(apply: Callable[[], int]) -> float:
    done, began = 0, time.thread_time()
    while (spent := time.thread_time() - began) < _SECONDS:
        done += sum(apply() for _ in range(_AT_ONCE))
    return done / spent
