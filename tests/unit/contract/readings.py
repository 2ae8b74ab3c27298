"""Readings and lines for property tests: good ones, odd ones, and good ones with something broken in them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from agent.contract import MAX_INT, MAX_TAGS, Reading

_any_names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
_controls = [*map(chr, range(0x20)), "\x7f"]
_names = st.text(st.characters(codec="utf-8", exclude_characters=_controls), min_size=1, max_size=12)
_texts = st.text(st.characters(codec="utf-8"), max_size=20)
_packed = st.text("AQw/+=-_ \n", max_size=9)
_offsets = st.sampled_from(["Z", "z", "+00:00", "-00:00", "+23:59", "-0530", "+24:00", "+1:00", "", " Z"])
_numbers = st.one_of(
    st.integers(-MAX_INT - 2, MAX_INT + 2), st.floats(allow_nan=False, allow_infinity=False), st.integers()
)
_doubles = st.floats(allow_nan=False, allow_infinity=False)
_FIELDS = ("ts", "device", "metric", "value", "tags")


def times() -> st.SearchStrategy[str]:
    """RFC 3339 and near misses: days and hours that do not exist, other separators, many digits."""
    return st.builds(
        "{:04}-{:02}-{:02}{}{:02}:{:02}:{:02}{}{}".format,
        st.sampled_from([0, 1, 1600, 1900, 1999, 2024, 2026, 9999]),
        st.integers(0, 13),
        st.integers(0, 32),
        st.sampled_from("Tt _"),
        st.sampled_from([0, 12, 23, 24]),
        st.sampled_from([0, 59, 60]),
        st.sampled_from([0, 59, 60]),
        st.sampled_from(
            ["", ".", ".5", ".999999", ".9999994", ".9999995", ".99999949", ",5", ".1234567890123"]
        ),
        _offsets,
    )


def good_times() -> st.SearchStrategy[str | int | float]:
    """What a reading may have for `ts`."""
    return st.one_of(
        st.datetimes().map(lambda at: at.isoformat(timespec="microseconds") + "Z"),
        st.integers(0, 253_402_300_799),
        st.floats(0, 253_402_300_799),
    )


def readings() -> st.SearchStrategy[Reading]:
    """Any valid reading."""
    values = st.one_of(
        st.booleans(),
        _texts,
        st.integers(-MAX_INT - 1, MAX_INT),
        st.floats(allow_nan=False, allow_infinity=False),
        st.lists(_doubles, min_size=1, max_size=5).map(tuple),
        st.binary(max_size=12),
    )
    tags = st.dictionaries(_names, _texts, max_size=4)
    return st.builds(
        Reading,
        metric=_names,
        value=values,
        ts=st.none() | good_times(),
        device=st.none() | _names,
        tags=tags,
    )


def _members() -> st.SearchStrategy[list[tuple[str, Any]]]:
    junk = st.recursive(
        st.none() | st.booleans() | _numbers | _texts | times(),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_names, inner, max_size=2),
        max_leaves=3,
    )
    member = st.one_of(
        st.tuples(st.just("ts"), times()),
        st.tuples(st.just("value"), _numbers | st.lists(_numbers, max_size=3)),
        st.tuples(st.just("value"), st.dictionaries(st.just("base64"), _texts | _packed, max_size=1)),
        st.tuples(st.just("tags"), st.dictionaries(_names, _texts | junk, max_size=3)),
        st.tuples(st.sampled_from(_FIELDS) | _any_names, junk),
        st.tuples(st.sampled_from(["device", "metric"]), _any_names | st.sampled_from(_controls)),
        st.tuples(st.just("tags"), st.dictionaries(_any_names, _texts, max_size=2)),
    )
    return st.lists(member, max_size=4)


def _object(pairs: list[tuple[str, Any]]) -> bytes:
    start = [("metric", "m"), ("value", 1)]
    return ("{" + ",".join(f"{json.dumps(k)}:{json.dumps(v)}" for k, v in start + pairs) + "}").encode()


def _broken(line: bytes, place: int, cut: int, put: bytes) -> bytes:
    place %= len(line) + 1
    return (line[:place] + put + line[place + cut :]).replace(b"\n", b"")


def lines() -> st.SearchStrategy[bytes]:
    """One line: a reading, an object of odd members (names may come twice), or one of these with a few bytes
    taken out or put in. Never blank, and without a newline."""
    encoded = st.one_of(readings().map(Reading.encode), _members().map(_object))
    junk = st.sampled_from(
        [b"", b'"', b",", b"{", b"}", b"\\", b"\\u", b"d83d", b"\xff", b"\xed\xa0\x80", b"\r", b" "]
    )
    digits = st.sampled_from(
        [b"0", b"-", b".", b"e", b"E+9", b"9" * 25, b"e999", b"NaN", b"\x00", b"\t", b"1"]
    )
    broken = st.builds(_broken, encoded, st.integers(0, 400), st.integers(0, 3), junk | digits)
    return (
        st.one_of(encoded, broken)
        .map(lambda line: line.replace(b"\n", b""))
        .filter(lambda line: line.strip())
    )


def _value(text: bytes) -> bytes:
    return b'{"metric":"a","value":' + text + b"}"


def _ts(text: bytes) -> bytes:
    return b'{"metric":"a","value":1,"ts":' + text + b"}"


def _metric(text: bytes) -> bytes:
    return b'{"metric":"' + text + b'","value":1}'


def _tags(count: int, name: bytes = b"k%d") -> bytes:
    pairs = b",".join(b'"' + (name % number if b"%" in name else name) + b'":"v"' for number in range(count))
    return b'{"metric":"a","value":1,"tags":{' + pairs + b"}}"


_GOOD = b'{"metric":"a","value":1}'
_VALUES = [
    b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808", b"-9223372036854775809",
    b"18446744073709551616", b"1" * 5000, b"1e999", b"-1e999", b"1e-999", b"1.7976931348623158e308",
    b"1.7976931348623159e308", b"1" + b"0" * 309 + b".0", b"NaN", b"-Infinity", b"-0", b"-0.0", b"01", b"1.",
    b".5", b"-", b"+1", b"1E+5", b"null", b"[]", b"{}", b'"\\ud800"', b'"\\ud83d\\ude00"',
    b'"\\ude00\\ud83d"', b'"\xed\xa0\x80"', b'"\xff"', b'"a\x01b"', b'"a\x7fb"',
    b'"a\tb"', b'"\\x"', b'"\\u 123"', b'"\\/"',
    b"[1]", b"[1,2.5,-3e2]", b"[ 1 , 2 ]", b"[1,]", b"[true]", b"[null]", b'["1"]', b"[[1]]", b"[{}]",
    b"[NaN]", b"[1e999]", b"[-0]", b"[-0.0]", b"[9007199254740992]", b"[9007199254740993]",
    b"[-9007199254740993]", b"[9007199254740993.0]", b"[18446744073709551616]", b"[" + b"1" * 5000 + b"]",
    b"[" + b"1," * 131_071 + b"1]", b"[" + b"1," * 131_072 + b"1]", b"[" + b"1," * 131_072 + b"x]",
    b'{"base64":""}', b'{"base64":"QQ=="}', b'{"base64":"QR=="}', b'{"base64":"QQ"}', b'{"base64":"QQ= ="}',
    b'{"base64":"QQ==QQ=="}', b'{"base64":"Q==="}', b'{"base64":"===="}', b'{"base64":"=QQQ"}',
    b'{"base64":"-_-_"}', b'{"base64":"\\/\\/\\/\\/"}', b'{"base64":"\\u0051Q=="}',
    b'{"base64":"QQ=\xc3\xa9"}',
    b'{"base64":"QQ==\\n"}', b'{"base64":null}', b'{"base64":1}', b'{"base64":"","x":1}', b'{"Base64":""}',
    b'{"base64":"x","base64":""}', b'{"base64":"QQ==","base64":"QUI="}',
    b'{"base64":"' + b"A" * 1_398_102 + b'=="}', b'{"base64":"' + b"A" * 1_398_103 + b'="}',
    b'{"base64":"' + b"A" * 1_398_104 + b'"}',
    b'1,"value":[1,"x"]', b'[1,"x"],"value":1', b'[1],"value":1', b'1,"value":[1]',
    b'"a","value":{"base64":""}',
    b'"\\u0000"', b"[" * 100_000, b'"' + b"x" * 32768 + b'"', b'"' + b"x" * 32769 + b'"',
    b'"' + "é".encode() * 32768 + b'"',
]  # fmt: skip
_TIMES = [
    b"0", b"-1", b"-0.0", b"253402300799", b"253402300799.5", b"253402300800", b"1e3", b"1e999", b"true",
    b"null", b'"2024-01-01t00:00:00z"', b'"2024-01-01 00:00:00Z"', b'"2024-01-01T00:00:00"',
    b'"2016-12-31T23:59:60Z"', b'"2024-02-30T00:00:00Z"', b'"2023-02-29T00:00:00Z"',
    b'"2024-02-29T00:00:00Z"',
    b'"9999-12-31T23:59:59.9999999Z"', b'"9999-12-31T23:59:59.9999994Z"', b'"0000-01-01T00:00:00Z"',
    b'"2024-01-01T00:00:00+0100"', b'"2024-01-01T00:00:00+01"', b'"2024-01-01"', b'"1700000000"', b'"P1D"',
    b'"2024-01-01T00:00:00\\u005a"', '"2024-01-01T00:00:0\u0661Z"'.encode(), b'""',
]  # fmt: skip
_LINES = [
    b'{"metric":null,"metric":"a","value":1}', b'{"metric":"b","metric":"a","value":1}',
    b'{"metric":"a","value":1,"ts":"x","ts":1}', b'{"metric":"a","value":1,"tags":{"a":1,"a":"b"}}',
    b'{"metric":"a","value":1,"tags":{"a":1},"tags":{}}', b'{"\\u006detric":"a","value":1}',
    b'{"metric":"a","value":1,"tags":{"":"b"}}', b'{"metric":"a","value":1,"tags":null}',
    b'{"metric":"a","value":1,"tags":{"\\ud800":"x"}}', b'{"metric":"a","value":1,"x":1}',
    b'{"metric":"a","value":1,"device":null}', b'{"metric":"","value":1}', b'{"metric":"a"}', b'{"value":1}',
    b'{"metric":"' + "é".encode() * 255 + b'","value":1}',
    b'{"metric":"' + "é".encode() * 256 + b'","value":1}',
    b'{"metric":"' + b"\\ud83d\\ude00" * 255 + b'","value":1}', b"{}", b"[]", b"1", b"null",
    b"{'metric':'a'}", b'{"metric":"a","value":1,}', b'{"metric":"a" "value":1}',
    _GOOD + _GOOD, _GOOD + b",", _GOOD + b"\x00",
    b"\xef\xbb\xbf" + _GOOD, _GOOD.decode().encode("utf-16"), _GOOD.decode().encode("utf-16-le"),
    b" \t\r" + _GOOD + b" \r\t ", b"\x0b" + _GOOD, b"\xc2\xa0" + _GOOD,
    b'{"metric":"a","value":1,"device":"\\u0000"}', b'{"metric":"a","value":1,"tags":{"\\u0000":"x"}}',
    b'{"metric":"a","value":1,"tags":{"x":"\\u0000"}}', b'{"metric":"a","value":1,"tags":{"a\\n":"x"}}',
    _tags(MAX_TAGS), _tags(MAX_TAGS + 1), _tags(MAX_TAGS + 1, b"k"),
]  # fmt: skip
_NAMES = [
    b"a\\u0000", b"\\u001Fa", b"a\\u0020", b"a\\\\u0000", b"a\\\\\\u0000", b"a\x7f", b"\\u007f", b"\\u007F",
    b"\\n", b"a\\n", b"\\t", b"\\b", b"\\f", b"\\r", b'\\"', b"\\\\n", b"\\u0080", b"\xc2\x80",
    b'a\\u0000","metric":"a',
]  # fmt: skip
ODD_LINES = [*map(_metric, _NAMES), *map(_value, _VALUES), *map(_ts, _TIMES), *_LINES]
"""Lines in which JSON readers are known to differ."""
