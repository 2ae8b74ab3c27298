from __future__ import annotations

import json
from datetime import UTC
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.mapping.compiled import MappingError, compile_map
from agent.mapping.schema import Map

_NOW_NS = 1_772_355_600_000_000_000
# RFC 8428, section 6: the pack of section 5.1.2.
_RFC = bytes.fromhex(
    "87a721781b75726e3a6465763a6f773a3130653230373361303130383030363a"
    "22fb41d303a15b00106223614120050067766f6c74616765016156"
    "02fb405e066666666666a3006763757272656e74062402fb3ff3333333333333a3006763757272656e74062302fb"
    "3ff4cccccccccccda3006763757272656e74062202fb3ff6666666666666a3006763757272656e74062102f93e00"
    "a3006763757272656e74062002fb3ff999999999999aa3006763757272656e74060002fb3ffb333333333333"
)
_SENML = compile_map(Map(name="m", preset="senml"), "edge-1")
_PLAIN = compile_map(Map(name="m"), "edge-1")


def _readings(payload: bytes, mapping: Any = _SENML) -> list[Any]:
    mapped = mapping.apply(payload, _NOW_NS)
    return [(one["metric"], one["value"]) for one in map(json.loads, mapped.payload.splitlines())]


def _refusal(payload: bytes) -> str:
    with pytest.raises(MappingError) as caught:
        _SENML.apply(payload, _NOW_NS)
    return str(caught.value)


def test_the_pack_of_the_rfc_as_cbor_gives_the_readings_of_the_pack_as_json() -> None:
    base = {"bn": "urn:dev:ow:10e2073a0108006:", "bt": 1.276020076001e9, "bu": "A", "bver": 5}
    values = enumerate([1.2, 1.3, 1.4, 1.5, 1.6, 1.7], -5)
    pack = [
        base | {"n": "voltage", "u": "V", "v": 120.1},
        *({"n": "current", "t": t, "v": v} for t, v in values),
    ]
    found = _SENML.apply(_RFC, _NOW_NS)
    assert found.count == 7
    assert found == _SENML.apply(json.dumps(pack).encode(), _NOW_NS)


def test_a_stream_of_indefinite_length_and_one_record_are_packs() -> None:
    record = cbor2.dumps({0: "a", 2: 1})
    assert _readings(b"\x9f" + record + b"\xff") == [("a", 1)]
    assert _readings(record) == [("a", 1)]


def test_bytes_and_decimal_fractions_are_as_in_json() -> None:
    pack = [{0: "raw", 8: b"\xfb\xff\x01"}, {0: "temp", 2: cbor2.CBORTag(4, [-2, 27315])}]
    assert _readings(cbor2.dumps(pack)) == [("raw", "-_8B"), ("temp", 273.15)]


def test_any_mapping_takes_cbor_with_its_keys_as_names() -> None:
    payload = cbor2.dumps({"temperature": 21.5, 7: 1, "none": cbor2.undefined})
    assert _readings(payload, _PLAIN) == [("temperature", 21.5), ("7", 1)]


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (cbor2.dumps([{0: "a", 2: cbor2.CBORTag(1, 5)}]), "tag 1 of CBOR is not decoded"),
        (cbor2.dumps([{0: "a", 2: 2**70}]), "tag 2 of CBOR is not decoded"),
        (bytes.fromhex("81d81c81d81d00"), "tag 29 of CBOR is not decoded"),
        (cbor2.dumps([cbor2.CBORTag(9999, 5)]), "tag 9999 of CBOR is not decoded"),
        (cbor2.dumps([cbor2.CBORTag(4, [401, 1])]), "beyond 10^400"),
        (cbor2.dumps([cbor2.CBORTag(4, [1, "1"])]), "no pair of whole numbers"),
        (bytes.fromhex("a200616100616202"), "Duplicate map key: 0"),
        (cbor2.dumps({2: 1, "v": 2}), "the key 'v' stands twice"),
        (cbor2.dumps({(1,): 1}), "a key is no text"),
        (cbor2.dumps([cbor2.CBORSimpleValue(99)]), "JSON has no"),
        (_RFC + b"\x00", "1 bytes follow"),
        (_RFC[:-1], "premature end"),
        (b"\x9b" + b"\xff" * 8, "premature end"),
        (b"\x81" * 1000, "depth (32) exceeded"),
        (b"\x81\x63\xed\xa0\x80", "error decoding text"),
        (b"\x9f" + b"\x00" * 2**16, "at most 65536"),
    ],
)
def test_cbor_that_json_cannot_have_is_refused_in_words(payload: bytes, said: str) -> None:
    assert said in _refusal(payload)


def test_a_number_that_is_not_finite_is_odd_and_costs_no_other() -> None:
    mapped = _SENML.apply(cbor2.dumps([{0: "a", 2: float("inf")}, {0: "b", 2: 2}]), _NOW_NS)
    assert (mapped.count, mapped.odd) == (1, [("record 0", "v is no number")])


_LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.datetimes()
_VALUE = st.recursive(
    _LEAF,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.integers(-8, 10) | st.text(), inner, max_size=6)
    ),
)


@settings(deadline=None)
@given(
    st.lists(st.dictionaries(st.integers(-6, 8) | st.text(max_size=3), _VALUE)).map(
        lambda pack: cbor2.dumps(pack, timezone=UTC)
    )
    | st.binary(min_size=1).map(lambda tail: bytes([0x80 | tail[0] & 0x3F]) + tail[1:])
)
def test_no_payload_of_cbor_raises_another_error(payload: bytes) -> None:
    for mapping in (_SENML, _PLAIN):
        try:
            mapped = mapping.apply(payload, _NOW_NS)
        except MappingError:
            continue
        assert mapped.count == len(mapped.payload.splitlines())
