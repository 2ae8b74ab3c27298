"""What is proposed for payloads that senders make."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from agent.mapping.compiled import compile_map
from agent.mapping.propose import fitting_presets, propose
from agent.mapping.schema import Map

UP = {
    "time": "2022-07-18T09:34:15.775023242+00:00",
    "deviceInfo": {"tenantId": "52f14cd4", "deviceName": "Test device", "devEui": "0101010101010101"},
    "fPort": 1,
    "object": {"temperature": 21.5, "humidity": 40, "door": "open"},
    "rxInfo": [{"gatewayId": "0016c001f153a14c", "rssi": -36, "snr": 10.5}],
}
PAYLOADS = [
    (UP, {"device": "{deviceInfo.devEui}", "values": "object", "time": "time"}),
    (
        {
            "end_device_ids": {"device_id": "dev1", "dev_eui": "0004A30B001C0530"},
            "received_at": "2020-02-12T15:15:45.787Z",
            "uplink_message": {"f_cnt": 5, "decoded_payload": {"t": 1.0}, "rx_metadata": [{"rssi": -35}]},
        },
        {
            "device": "{end_device_ids.dev_eui}",
            "values": "uplink_message.decoded_payload",
            "time": "received_at",
        },
    ),
    (
        {
            "timestamp": 1_700_000_000_000,
            "values": [{"id": "Ch.D.T", "v": 42, "q": True, "t": 1_700_000_000_100}],
        },
        {
            "at": "values",
            "metric": "{id}",
            "value": "v",
            "tags": {"quality": "{q}"},
            "time": "t",
            "time_format": "ms",
        },
    ),
    (
        {"Time": "2019-11-03T20:45:37", "ENERGY": {"Total": 85.35, "Power": 0}, "TempUnit": "C"},
        {"values": "ENERGY", "time": "Time", "zone": "UTC"},
    ),
    (
        {
            "propertyAlias": "/a/b",
            "propertyValues": [
                {
                    "value": {"doubleValue": 3.5},
                    "timestamp": {"timeInSeconds": 1_700_000_000, "offsetInNanos": 123},
                    "quality": "GOOD",
                }
            ],
        },
        {
            "at": "propertyValues",
            "metric": "value",
            "value": "value.doubleValue",
            "tags": {"quality": "{quality}"},
            "time": "timestamp.timeInSeconds",
            "time_nanos": "timestamp.offsetInNanos",
            "time_format": "s",
        },
    ),
    (
        {"ts": 1_700_000_000_000, "values": {"a": 1, "b": 2.5}},
        {"values": "values", "time": "ts", "time_format": "ms"},
    ),
    (
        {"value": 1.5, "timestamp": 1_700_000_000_000, "quality": "Good"},
        {
            "metric": "value",
            "value": "value",
            "tags": {"quality": "{quality}"},
            "time": "timestamp",
            "time_format": "ms",
        },
    ),
]


@pytest.mark.parametrize(("payload", "keys"), PAYLOADS)
def test_places_are_found_by_their_names_and_the_proposal_works(payload: Any, keys: dict[str, Any]) -> None:
    text = json.dumps(payload).encode()
    found = propose(text)
    assert found is not None
    assert found.map == Map(name="proposed", **keys)
    (table,) = tomllib.loads(found.as_toml())["map"]
    assert Map(**table) == found.map
    mapped = compile_map(found.map, "edge-1", has_topic=False).apply(text, 0)
    assert mapped.count
    assert mapped.odd == []


def test_a_topic_names_the_device_and_words_are_found() -> None:
    found = propose(b"OFF", "plant/pump-7/state")
    assert found is not None
    assert (found.map.device, found.map.words) == ("{2}", {"ON": True, "OFF": False})


def test_nothing_is_proposed_for_no_payload() -> None:
    assert propose(b"{]") is None
    assert fitting_presets(b"{]", "") == []


def test_presets_that_fit_are_found() -> None:
    assert "chirpstack" in fitting_presets(json.dumps(UP).encode(), "")


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
NAMES = st.sampled_from(["v", "id", "t", "time", "values", "object", "deviceId", "u", "q", "", "a b"])
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@for_all(JSON, st.sampled_from(["", "a", "a/b", "a/b/c"]))
def test_a_proposal_is_always_a_mapping_that_can_be_read_back(payload: Any, topic: str) -> None:
    found = propose(json.dumps(payload).encode(), topic)
    if found is not None:
        (table,) = tomllib.loads(found.as_toml())["map"]
        compile_map(Map(**table), "edge-1", has_topic=bool(topic))


def test_numbers_in_text_are_proposed_as_a_time_and_named_as_values() -> None:
    found = propose(json.dumps({"ts": "1700000000", "list": [{"name": "t", "value": "3.5"}]}).encode())
    assert found is not None
    assert (found.map.time, found.map.time_format) == ("$.ts", "s")
    assert "some values are numbers in text: numbers = true reads them as numbers" in found.notes
    found = propose(json.dumps({"ts": "1700000000", "serial": "007", "v": 3}).encode())
    assert found is not None
    assert not any("numbers" in note for note in found.notes)
