"""What each shipped mapping makes of its maker's payloads (`makers/`), and which repeats are the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from agent import contract
from agent.mapping.compiled import Mapped, MappingError, compile_map
from agent.mapping.presets import load, names
from agent.mapping.schema import Map
from tests.unit.mapping.test_compiled import ARRIVED, NOW, rows

MAKERS: Final = Path(__file__).parent / "makers"
CASES: Final = {path.stem: json.loads(path.read_text()) for path in sorted(MAKERS.glob("*.json"))}
EVERY: Final = [(preset, case) for preset, cases in CASES.items() for case in cases]
NAMES: Final = [f"{preset}: {case['about']}" for preset, case in EVERY]
DATED: Final = ("chirpstack", "kepware", "neuron", "sitewise", "ttn")
"""Presets whose readings have a time of their own in each payload."""


def received(case: dict[str, Any]) -> bytes:
    return str(case["text"]).encode() if "text" in case else json.dumps(case["payload"]).encode()


def applied(preset: str, case: dict[str, Any], now_ns: int = NOW) -> Mapped:
    given = Map(name="m", preset=preset, **case.get("keys", {}))
    return compile_map(given, "edge-1").apply(received(case), now_ns, case["topic"])


def series(case: dict[str, Any]) -> list[str]:
    return [json.dumps(reading[:3] + reading[4:]) for reading in case.get("readings", ())]


def test_each_preset_has_payloads_of_its_maker() -> None:
    assert tuple(CASES) == names()
    assert all(load(name).about for name in names())


@pytest.mark.parametrize(("preset", "case"), EVERY, ids=NAMES)
def test_a_payload_of_a_maker_becomes_its_readings(preset: str, case: dict[str, Any]) -> None:
    if "refused" in case:
        with pytest.raises(MappingError, match=case["refused"]):
            applied(preset, case)
        return
    found = applied(preset, case)
    readings = [
        [
            None if row["ts"] == ARRIVED else row["ts"],
            row["device"],
            row["metric"],
            row["value"],
            *([row["tags"]] if "tags" in row else []),
        ]
        for row in rows(found)
    ]
    assert readings == case["readings"]
    for reading, expected in zip(readings, case["readings"], strict=True):
        assert type(reading[3]) is type(expected[3])
    assert found.no_value == case.get("no_value", 0)
    assert [list(odd) for odd in found.odd] == case.get("odd", [])


@pytest.mark.parametrize(("preset", "case"), EVERY, ids=NAMES)
def test_no_two_readings_of_a_payload_have_one_series_and_time(preset: str, case: dict[str, Any]) -> None:
    assert len(set(series(case))) == len(series(case))


@pytest.mark.parametrize(("preset", "case"), EVERY, ids=NAMES)
def test_a_repeat_is_the_same_reading_where_the_payload_has_its_time(
    preset: str, case: dict[str, Any]
) -> None:
    if "refused" in case:
        return
    first, second = applied(preset, case), applied(preset, case, NOW + 10**12)
    has_time = all(reading[0] is not None for reading in case["readings"])
    assert (first.payload == second.payload) == has_time
    assert first.is_dated == has_time or not case["readings"]
    assert has_time or preset not in DATED


@pytest.mark.parametrize("preset", names())
def test_a_device_of_the_user_leaves_the_records_of_a_preset_their_own(preset: str) -> None:
    mapping = compile_map(Map(name="m", preset=preset, device="mine"), "edge-1")
    for case in CASES[preset]:
        if "refused" not in case:
            found = mapping.apply(received(case), NOW, case["topic"])
            assert [row["metric"] for row in rows(found)] == [reading[2] for reading in case["readings"]]


@pytest.mark.parametrize("preset", ["chirpstack", "kepware", "neuron", "senml", "shelly2", "sitewise", "ttn"])
def test_a_preset_fits_an_input_of_lines_where_its_payloads_name_their_device(preset: str) -> None:
    mapping = compile_map(Map(name="m", preset=preset), "edge-1", has_topic=False)
    found = mapping.apply(received(CASES[preset][0]), NOW)
    assert rows(found) == rows(applied(preset, CASES[preset][0]))
    assert contract.MAX_BATCH_READINGS > found.count > 0
