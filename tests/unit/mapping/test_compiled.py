"""What a mapping makes of a payload, and what it names instead."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import jmespath
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from agent import contract
from agent.mapping.compiled import (
    MAX_BYTES,
    MAX_READINGS,
    MapError,
    Mapped,
    MappingError,
    compile_map,
)
from agent.mapping.paths import MISSING, Path
from agent.mapping.schema import Map, MapRecord

NOW = 1_700_000_000 * 10**9
ARRIVED = "2023-11-14T22:13:20.000000-00:00"


def mapped(payload: object, topic: str = "plant/pump-7/x", mark: str | None = None, **keys: Any) -> Mapped:
    """The result for a payload (bytes, or an object as JSON)."""
    text = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return compile_map(Map(name="m", **keys), "edge-1").apply(text, NOW, topic, mark)


def rows(found: Mapped) -> list[dict[str, Any]]:
    lines = found.payload.splitlines()
    assert len(lines) == found.count
    for line in lines:
        contract.parse_reading(line)
    return [json.loads(line) for line in lines]


def values(payload: object, **keys: Any) -> dict[str, Any]:
    return {row["metric"]: row["value"] for row in rows(mapped(payload, **keys))}


def odd(payload: object, **keys: Any) -> dict[str, str]:
    return dict(mapped(payload, **keys).odd)


def problems(**keys: Any) -> list[str]:
    with pytest.raises(MapError) as caught:
        compile_map(Map(name="m", **keys), "edge-1")
    return [f"{one.key}: {one.stood}; {one.remedy}" for one in caught.value.problems]


@pytest.mark.parametrize(
    ("payload", "value"),
    [
        (b"ON", True),
        (b" off\n", "off"),
        (b"23.5", 23.5),
        (b'"on"', "on"),
        (b"0123", "0123"),
        (b"true", True),
        ("Österreich".encode(), "Österreich"),
    ],
)
def test_a_bare_payload_is_one_reading_named_by_its_topic(payload: bytes, value: object) -> None:
    assert values(payload, words={"ON": True}) == {"plant/pump-7/x": value}


@pytest.mark.parametrize("payload", [b"nan", b"NaN", b"-nan", b"null", b'""', b"", b"unavailable"])
def test_a_payload_without_value_is_counted_and_no_reading(payload: bytes) -> None:
    found = mapped(payload, no_value=["", "unavailable"])
    assert (found.count, found.no_value, found.odd) == (0, 1, [])


def test_members_are_a_reading_each_and_nested_members_have_both_names() -> None:
    payload = {"a": 1, "b": {"c": {"d": "x"}}, "e": [{"f": 1}, {"f": 2}], "g": [1, 2.5], "h": ["p", "q"]}
    expected = {"a": 1, "b_c_d": "x", "e_0_f": 1, "e_1_f": 2, "g": [1, 2.5], "h": '["p","q"]'}
    assert values(payload) == expected


def test_an_odd_member_is_named_and_costs_no_other() -> None:
    payload = b'{"a":nan,"b":1,"c":inf,"d":0x1F,"f":1e400,"g":18446744073709551616,"":3,"x\\n":1,"z":2}'
    found = mapped(payload)
    assert {row["metric"]: row["value"] for row in rows(found)} == {"b": 1, "z": 2}
    assert dict(found.odd).keys() == {"c", "d", "f", "g", "", "x\n"}
    assert found.no_value == 1
    assert found.reason().endswith("and 3 more (2 readings of the payload are stored)")


def test_text_that_is_not_utf_8_costs_no_other_member() -> None:
    assert odd(b'{"a":"\xff","b":1}') == {"a": "text that is not UTF-8"}
    assert values(b'{"a":"\xff","b":1}') == {"b": 1}


@pytest.mark.parametrize("deep", [{}, 1])
def test_a_member_nested_too_deep_is_odd(deep: object) -> None:
    nested = deep
    for _ in range(12):
        nested = {"n": nested}
    assert list(odd({"a": 1, "b": nested})) == ["b_n_n_n_n_n_n_n"]
    with pytest.raises(MappingError, match="nested too deeply"):
        mapped(b"[" * 5000 + b"]" * 5000)


def test_members_are_taken_and_left_by_pattern_with_all_that_is_inside() -> None:
    payload = {"power": {"a": 1, "b": 2}, "errors": ["x"], "id": 3}
    assert values(payload, take=["power"]) == {"power_a": 1, "power_b": 2}
    assert values(payload, take=["*_a", "id"]) == {"power_a": 1, "id": 3}
    found = mapped(payload, leave=["*"])
    assert (found.count, found.odd, found.no_value) == (0, [], 0)
    assert values(payload, leave=["power", "errors"]) == {"id": 3}


def test_a_member_that_says_time_device_unit_or_a_tag_is_no_reading() -> None:
    payload = {"id": "d1", "t": 1_700_000_001, "u": "bar", "q": 192, "p": 1.5}
    found = mapped(payload, device="{id}", time="t", time_format="s", unit="{u}", tags={"quality": "{q}"})
    (row,) = rows(found)
    assert row["ts"] == "2023-11-14T22:13:21Z"
    assert (row["device"], row["metric"], row["value"]) == ("d1", "p", 1.5)
    assert row["tags"] == {"quality": "192", "unit": "bar"}


def test_records_of_an_array_have_device_metric_value_and_time_of_their_own() -> None:
    payload = {
        "timestamp": 1_700_000_000_000,
        "values": [
            {"id": "ch.a", "v": 1, "q": True, "t": 1_700_000_000_123},
            {"id": "b", "v": None, "t": 1},
            {"id": "c"},
            {"v": 1},
            7,
            None,
        ],
    }
    found = mapped(
        payload, at="values", value="v", metric="{id}", time="t", time_format="ms", tags={"q": "{q}"}
    )
    (row,) = rows(found)
    assert row == {
        "ts": "2023-11-14T22:13:20.123Z",
        "device": "edge-1",
        "metric": "ch.a",
        "value": 1,
        "tags": {"q": "true"},
    }
    assert dict(found.odd) == {
        "record 2": "nothing at v",
        "record 3": "it names no metric",
        "record 4": "nothing at v",
    }
    assert found.no_value == 2


def test_members_as_records_are_named_by_key() -> None:
    assert values({"d": {"a": {"t": 1}, "b": {"t": 2}}}, at="d.*", metric="{key}.{member}") == {
        "a.t": 1,
        "b.t": 2,
    }


def test_several_kinds_of_records_come_from_one_payload_and_are_chosen_by_topic_and_content() -> None:
    keys: dict[str, Any] = {
        "device": "{2}",
        "record": [
            MapRecord(values="object"),
            MapRecord(at="rx", take=["rssi"], metric="gw_{member}", tags={"gw": "{id}"}),
            MapRecord(topic="other/#", values="@"),
            MapRecord(when="kind == 'b'", value="extra", metric="extra"),
        ],
    }
    payload = {"object": {"t": 1}, "rx": [{"id": "g1", "rssi": -3}], "kind": "a", "extra": 5}
    assert values(payload, **keys) == {"t": 1, "gw_rssi": -3}
    assert values({**payload, "kind": "b"}, **keys) == {"t": 1, "gw_rssi": -3, "extra": 5}


@pytest.mark.parametrize(
    ("payload", "keys", "reason"),
    [
        ({"a": 1}, {"values": "object"}, "nothing at object"),
        ({"a": 1}, {"value": "v"}, "nothing at v"),
        ({"a": 1}, {"at": "r"}, "nothing at r"),
        ({"a": 1}, {"when": "b"}, "no record of the mapping fits it"),
        (b'{"a":', {}, "not JSON"),
        ({"a": 1}, {"value": "b || c"}, "nothing at b"),
    ],
)
def test_a_payload_that_the_mapping_does_not_fit_is_refused_or_skipped(
    payload: object, keys: dict[str, Any], reason: str
) -> None:
    with pytest.raises(MappingError, match=reason):
        mapped(payload, **keys)
    if "JSON" not in reason:
        assert mapped(payload, empty="skip", **keys).no_value == 1


def test_a_record_without_device_or_with_a_bad_name_is_odd() -> None:
    assert odd({"a": 1}, device="{id}") == {"device": "it names no device"}
    assert odd({"id": "x" * 256, "a": 1}, device="{id}")["device"].startswith("its device has 256 characters")
    assert odd({"id": "a\tb", "a": 1}, device="{id}") == {"device": "its device holds a control character"}
    assert rows(mapped({"id": "Pümp 7/§.*>", "a": 1}, device="{id}"))[0]["device"] == "Pümp 7/§.*>"


def test_an_object_as_a_name_is_no_name() -> None:
    assert odd({"id": {"x": 1}, "a": 1}, device="{id}", take=["a"]) == {"device": "it names no device"}


def test_numbers_in_text_are_numbers_where_that_is_said() -> None:
    payload = {"a": "23.5", "b": "007", "c": "1e5", "d": "9" * 40, "e": "x"}
    assert values(payload, numbers=True) == {"a": 23.5, "b": "007", "c": 1e5, "d": "9" * 40, "e": "x"}
    assert values({"a": "23.5"}) == {"a": "23.5"}


def test_readings_with_the_time_of_arrival_are_marked_and_others_are_not() -> None:
    assert rows(mapped({"a": 1}, mark="retained"))[0]["tags"] == {"retained": "true"}
    assert "tags" not in rows(mapped({"t": 1, "a": 1}, mark="retained", time="t", time_format="s"))[0]
    assert not mapped({"a": 1}).is_dated
    assert mapped({"t": 1, "a": 1}, time="t", time_format="s").is_dated


def test_a_time_that_cannot_be_read_is_named_and_an_absent_one_is_that_of_arrival() -> None:
    assert odd({"t": "soon", "a": 1}, time="t").keys() == {"time"}
    assert rows(mapped({"a": 1}, time="t"))[0]["ts"] == ARRIVED


def test_readings_bytes_and_records_of_a_payload_are_bounded() -> None:
    found = mapped({str(number): 1 for number in range(MAX_READINGS + 150)})
    assert (found.count, len(found.odd), found.more_odd) == (MAX_READINGS, 100, 50)
    found = mapped({"g": "x" * 30_000, **{str(n): n for n in range(1000)}}, tags={"g": "{g}"})
    assert len(found.payload) < MAX_BYTES * 1.1
    assert found.count + found.odd_count == 1000
    found = mapped([1] * 10_003, metric="m")
    assert found.count == MAX_READINGS
    assert found.count + found.odd_count - 1 + 3 == 10_003


def test_of_two_members_with_one_name_the_last_counts() -> None:
    assert values(b'{"a":1,"a":2}') == {"a": 2}


def test_a_given_key_replaces_that_of_a_preset_but_none_of_its_records() -> None:
    up = {
        "time": "2022-07-18T09:34:15.775023242+00:00",
        "deviceInfo": {"devEui": "01", "deviceName": "n"},
        "object": {"t": 1},
        "rxInfo": [{"gatewayId": "g", "rssi": -36, "snr": 10.5, "context": "x"}],
    }
    expected = {("01", "t"), ("01", "gateway_rssi"), ("01", "gateway_snr")}
    found = rows(mapped(up, preset="chirpstack"))
    assert {(row["device"], row["metric"]) for row in found} == expected
    named = rows(mapped(up, preset="chirpstack", device="{$.deviceInfo.deviceName}", metric="x_{member}"))
    assert {(row["device"], row["metric"]) for row in named} == {
        ("n", "x_t"),
        ("n", "gateway_rssi"),
        ("n", "gateway_snr"),
    }


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"value": "v|"}, "value: 'v|' is no path of JMESPath"),
        ({"value": "{a: b}"}, "value: '{a: b}' has a multi select dict"),
        ({"value": "avg(a)"}, "value: 'avg(a)' calls avg; take one of contains"),
        ({"value": "a" * 301}, "value: a path of 301 characters; write 1 to 300"),
        ({"value": "a", "values": "b"}, "values: stands beside value; keep the one that is meant"),
        ({"device": "{a"}, "device: '{a' is not a template; write a path in it as {outer.inner}"),
        ({"device": ""}, "device: a template of 0 characters"),
        ({"tags": {"": "x"}}, "tags: the name '' has 0 characters"),
        ({"time": "t", "zone": "Moon/Base"}, "zone: 'Moon/Base' is no time zone of this machine"),
        (
            {"time": "t", "time_format": "minutes"},
            "time_format: 'minutes' is no format; write s, ms, us, ns, rfc3339",
        ),
        ({"time": "t", "time_format": "%H:%M"}, "time_format: '%H:%M' has no date"),
        (
            {"time": "t", "time_format": "%Y-%m-%d %H:%M %Z", "zone": "Europe/Berlin"},
            "time_format: '%Y-%m-%d %H:%M %Z' has %Z, which gives no offset; write %z",
        ),
        (
            {"time": "t", "time_format": "%Y-%m-%d %I:%M", "zone": "UTC"},
            "time_format: '%Y-%m-%d %I:%M' has one of %I and %p; write both, or %H",
        ),
        (
            {"time": "t", "time_format": "%Y-%m-%d %H:%M %p", "zone": "UTC"},
            "time_format: '%Y-%m-%d %H:%M %p' has one of %I and %p; write both, or %H",
        ),
        ({"time": "t", "time_format": "%Y-%m-%d"}, "time_format: '%Y-%m-%d' has no offset; add %z, or set"),
        ({"time": "t", "time_nanos": "n"}, 'time_nanos: goes with a number, and time_format is "rfc3339"'),
        ({"zone": "UTC"}, "zone: has no time to go with; set time, or leave it out"),
        ({"words": {"a": [1]}}, "words: 'a' means [1]; write true, false, a number or text"),
        ({"take": [""]}, "take: has an empty or long pattern"),
        ({"preset": "nope"}, 'preset: there is no preset "nope"; take one of'),
        ({"topic": "a/#/b"}, 'topic: "a/#/b" is not a topic filter; write it as plant/+/#'),
        ({"record": [MapRecord(value="[")]}, "record[1].value: '[' is no path"),
    ],
)
def test_a_mapping_that_cannot_work_is_told_before_it_runs(keys: dict[str, Any], problem: str) -> None:
    assert any(one.startswith(problem) for one in problems(**keys)), problems(**keys)


def test_an_input_without_topics_has_no_part_of_one() -> None:
    for given in (Map(name="m", device="{2}"), Map(name="m", value="v"), Map(name="m", topic="a/#")):
        with pytest.raises(MapError):
            compile_map(given, "edge-1", has_topic=False)


def test_senml_is_resolved() -> None:
    pack = [
        {"bn": "urn:dev:ow:1;", "bt": 1.276020076e9, "bu": "A"},
        {"n": "v", "u": "V", "v": 120.1},
        {"n": "c", "t": -5, "v": 1.2},
        {"n": "x", "vs": "hi"},
        {"n": "d", "vb": True},
        {"n": "y", "z_": 1, "v": 1},
        {"n": "s", "s": 3},
        {"n": 1, "v": 1},
    ]
    keys: dict[str, Any] = {"expand": "senml", "value": "v", "metric": "{n}", "unit": "{u}"}
    found = mapped(pack, time="t", time_format="s", **keys)
    assert [
        (row["ts"], row["metric"], row["value"], row.get("tags", {}).get("unit")) for row in rows(found)
    ] == [
        ("2010-06-08T18:01:16Z", "urn:dev:ow:1;v", 120.1, "V"),
        ("2010-06-08T18:01:11Z", "urn:dev:ow:1;c", 1.2, "A"),
        ("2010-06-08T18:01:16Z", "urn:dev:ow:1;x", "hi", "A"),
        ("2010-06-08T18:01:16Z", "urn:dev:ow:1;d", True, "A"),
        ("2010-06-08T18:01:16Z", "urn:dev:ow:1;s_sum", 3, None),
    ]
    assert [name for name, _ in found.odd] == ["record 5", "record 7"]
    assert odd([{"a": 1}], expand="senml") == {"record 0": "it has no value of SenML"}
    relative = rows(mapped([{"n": "a", "t": -2, "v": 1}], time="t", time_format="s", **keys))
    assert relative[0]["ts"] == "2023-11-14T22:13:18Z"


def test_records_in_records_have_their_parent() -> None:
    found = rows(
        mapped(
            {"k": {"name": "p", "list": [{"v": 1}, {"v": 2}]}, "j": {"name": "q", "list": []}, "i": {}},
            at="*",
            each="list",
            device="{^.name}",
            metric="{key}",
            value="v",
        )
    )
    assert [(row["device"], row["metric"], row["value"]) for row in found] == [("p", "k", 1), ("p", "k", 2)]
    assert "each: begins at the payload" in problems(each="$.a")[0]


def test_a_record_without_inner_records_is_named_or_counted() -> None:
    payload = [{"list": [{"v": 1}]}, {"lists": [{"v": 2}]}, {"list": []}, {"list": None}, None, 7]
    found = mapped(payload, each="list", value="v", metric="m")
    assert [row["value"] for row in rows(found)] == [1]
    assert dict(found.odd) == {"record 1": "nothing at list", "record 5": "nothing at list"}
    assert found.no_value == 3
    with pytest.raises(MappingError, match="nothing at list"):
        mapped({"lists": [{"v": 2}]}, each="list", value="v", metric="m")


def test_topics_are_excepted() -> None:
    keys: dict[str, Any] = {"except_topics": ["a/+/set", "b/#"], "empty": "skip"}
    assert mapped(1, "a/b/set", **keys).no_value == 1
    assert mapped(1, "b/x", **keys).no_value == 1
    assert mapped(1, "a/b/c", **keys).count == 1
    assert "except_topics" in problems(except_topics=["a/#/b"])[0]


def test_an_array_is_one_record_where_the_mapping_says_so() -> None:
    assert values([1, 2], at="$", value="@", metric="m") == {"m": [1, 2]}
    assert values(["a", "b"], at="$", value="@", metric="m") == {"m": '["a","b"]'}


def test_an_empty_member_that_is_not_taken_is_no_missing_value() -> None:
    assert mapped({"a": {}, "b": 1}, take=["b"]).no_value == 0
    assert mapped({"a": {}, "b": 1}).no_value == 1


def test_an_empty_payload_is_no_value() -> None:
    found = mapped(b"", value="v")
    assert (found.count, found.no_value, found.odd) == (0, 1, [])


def test_a_negation_before_a_longer_path_is_refused() -> None:
    assert problems(when="a && !b.c") == [
        "when: 'a && !b.c' has ! before a longer path; write it as !(a.b)",
    ]
    assert values({"a": 1, "b": {}}, when="a && !(b.c)") == {"a": 1}
    assert values({"a": [{"c": 1}, {"b": 2}]}, at="a[?!c]") == {"b": 2}


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
)
MAPS = st.fixed_dictionaries(
    {},
    optional={
        "at": st.sampled_from(["@", "a", "*", "a[]", "a.*", "[0]"]),
        "value": st.sampled_from(["v", "a", "a.b", "a || b", "[0]"]),
        "device": st.sampled_from(["{a}", "{^.a}", "{$.a}", "{1}", "d{key}", "{2+}"]),
        "metric": st.sampled_from(["{member}", "{a}{member}", "m"]),
        "time": st.sampled_from(["t", "$.t", "a"]),
        "time_format": st.sampled_from(["s", "ms", "rfc3339"]),
        "take": st.just(["a*"]),
        "leave": st.just(["b"]),
        "tags": st.just({"x": "{a}"}),
        "numbers": st.booleans(),
        "empty": st.sampled_from(["refuse", "skip"]),
        "expand": st.just("senml"),
        "each": st.sampled_from(["@", "a", "[?a]"]),
    },
)


@for_all(JSON, MAPS, st.text(max_size=8))
def test_every_payload_gives_readings_that_the_contract_accepts_the_same_at_each_repeat(
    payload: Any, keys: dict[str, Any], topic: str
) -> None:
    if "time" not in keys:
        keys.pop("time_format", None)
    text = json.dumps(payload).encode()
    mapping = compile_map(Map(name="m", **keys), "edge-1")
    try:
        found = mapping.apply(text, NOW, topic)
    except MappingError as error:
        with pytest.raises(MappingError, match=re.escape(str(error))):
            mapping.apply(text, NOW, topic)
        return
    rows(found)
    assert found == compile_map(Map(name="m", **keys), "edge-1").apply(text, NOW, topic)


@for_all(st.dictionaries(st.text(min_size=1, max_size=3), LEAVES, max_size=6))
def test_every_member_is_a_reading_or_odd_or_without_value(payload: dict[str, Any]) -> None:
    found = mapped(payload)
    assert found.count + found.odd_count + found.no_value == max(1, len(payload))


@for_all(st.binary(max_size=60))
def test_any_bytes_are_readings_or_refused(payload: bytes) -> None:
    with contextlib.suppress(MappingError):
        rows(mapped(payload))


def test_names_of_many_long_parts_are_refused_without_being_looked_through() -> None:
    keys: dict[str, Any] = {"at": "r", "value": "v", "metric": "m"}
    assert problems(device="{a}" * 21, **keys) == ["device: a template of 21 parts; write at most 20"]
    found = mapped({"x": "y" * 40_000, "r": [{"v": 1}] * 3}, device="{$.x}" * 20, **keys)
    assert [reason for _, reason in found.odd] == [
        "its device has 655380 characters, and may have 1 to 255"
    ] * 3


EXPRESSIONS = [
    "!a",
    "a && b",
    "a || b",
    "!(a || b) && a.b",
    "a == 'x'",
    "a != 'x'",
    "a.b == 'x' || !b",
    "a == `1`",
]


@for_all(
    st.sampled_from(EXPRESSIONS),
    st.dictionaries(
        st.sampled_from(["a", "b"]),
        LEAVES | st.sampled_from(["x", "", 0, 1, 0.0, [], {}]) | st.dictionaries(st.just("b"), st.just("x")),
    ),
)
def test_a_condition_is_that_of_jmespath(expression: str, payload: dict[str, Any]) -> None:
    found = Path(expression).find(payload)
    assert (None if found is MISSING else found) == jmespath.search(expression, payload)
