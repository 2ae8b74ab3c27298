from __future__ import annotations

import json
import math
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent import contract
from agent.leaf.inputs.formats import line_protocol
from agent.leaf.inputs.formats.line_cache import LineCache
from agent.leaf.inputs.formats.line_protocol import Parsing
from agent.leaf.inputs.formats.ndjson import MAX_COUNTED, MAX_LISTED, BodyTooLargeError
from tests.harness.examples import costly

NOW = 1_770_000_000_123_456_789
ARRIVED = "2026-02-02T02:40:00.123456-00:00"
LIMIT = 2**24

names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\\\x7f", min_codepoint=0x20),
    min_size=1,
    max_size=20,
)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=30)
values = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), texts
)


def parse(body: bytes, unit: int = 1, limit: int = LIMIT, to: LineCache | None = None) -> Parsing:
    parsing = Parsing(body, to or LineCache("edge-1", "host"), unit, NOW, limit)
    while parsing.step():
        pass
    assert parsing.payload.count(b"\n") == parsing.count
    return parsing


def taken(body: bytes, unit: int = 1) -> list[contract.Reading]:
    parsing = parse(body, unit)
    assert parsing.bad == []
    return [contract.parse_reading(line) for line in parsing.payload.splitlines()]


def escaped(name: str, delimiters: str = ",= ") -> str:
    return "".join("\\" + one if one in delimiters else one for one in name)


def written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "F"
    if isinstance(value, int):
        return f"{value}i"
    if isinstance(value, float):
        return repr(value)
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


@st.composite
def points(draw: st.DrawFn) -> tuple[str, dict[str, str], dict[str, Any], int | None]:
    measurement = draw(names.filter(lambda one: not one.startswith("#")))
    tags = draw(st.dictionaries(names, names, max_size=4))
    fields = draw(st.dictionaries(names, values, min_size=1, max_size=4))
    return measurement, tags, fields, draw(st.none() | st.integers(-(10**18), 2 * 10**18))


def line_of(point: tuple[str, dict[str, str], dict[str, Any], int | None]) -> str:
    measurement, tags, fields, ns = point
    key = escaped(measurement, ", ") + "".join(f",{escaped(k)}={escaped(v)}" for k, v in tags.items())
    pairs = ",".join(f"{escaped(name)}={written(value)}" for name, value in fields.items())
    return f"{key} {pairs}" + ("" if ns is None else f" {ns}")


@given(st.lists(points(), min_size=1, max_size=5))
@costly(300)
@example([("a", {"t": 'say "x"'}, {"f": "two\nlines, and a=b #c"}, 1)])
def test_every_field_is_a_reading_with_its_value_and_its_tags(given: list[Any]) -> None:
    stored = taken("\n".join(map(line_of, given)).encode())
    expected = [
        (
            f"{measurement}_{name}",
            value,
            tags.get("host", "edge-1"),
            {k: v for k, v in tags.items() if k != "host"},
        )
        for measurement, tags, fields, _ in given
        for name, value in fields.items()
    ]
    assert [(one.metric, one.value, one.device, one.tags) for one in stored] == expected
    assert [type(one.value) is bool for one in stored] == [type(value) is bool for _, value, *_ in expected]


@given(st.binary(max_size=200) | st.text(alphabet='ab,= \\"\n#1i\r', max_size=200).map(str.encode))
@settings(max_examples=500, deadline=None)
@example(b'a b="\\')
@example(b"a\\ b=1\\ 1")
@example(b'm,t=\\" f="x\n\\""')
def test_whatever_is_sent_what_is_taken_can_be_stored_and_every_line_is_accounted_for(body: bytes) -> None:
    parsing = parse(body)
    for line in parsing.payload.split(b"\n")[:-1]:
        contract.parse_reading(line)
    numbers = [number for number, _ in parsing.bad]
    assert numbers == sorted(set(numbers))
    assert all(1 <= number <= body.count(b"\n") + 1 for number in numbers)


@given(st.lists(points(), min_size=1, max_size=4))
@settings(deadline=None)
def test_a_quick_look_and_a_thorough_one_see_the_same(given: list[Any]) -> None:
    plain = [line_of(point) for point in given if not set('"\\\r\n') & set(line_of(point))]
    body = "".join(line + "\n" for line in plain).encode()
    assert parse(body.replace(b"\n", b"\r\n")).payload == parse(body).payload


keys = st.sampled_from(
    ["a", "a,t=x", "a,host=h", "b,t=x,host=h,u=y", "a,t", "a,t=", ",t=x", "#a", "ä,t=ü", "a\x01", "", "1"]
)
stamps = st.integers(10**18, 2 * 10**18).map(str) | st.sampled_from(
    ["1790000000000000000", "1790000000120000000", "9" * 19, "1790000000", "-5", "", "", "x", "1 1", "1.5"]
)
numbers = st.floats().map(repr) | st.integers(-(2**65), 2**65).map(str)
fields = st.lists(
    st.builds(
        "{}={}{}".format,
        st.sampled_from(["f", "g", "g", "1", "ä", "", "f,g", "f=f"]),
        st.sampled_from(
            ["1", "-0.5", "0", "-0", "1.50", "t", "true", "007", "1e3", "", "+1", ".5", "1.", "1\t"]
        )
        | st.sampled_from(
            ["9" * 18, "9" * 19, "1" * 30 + ".5", "0." + "1" * 50, "null", "[1", "2]", "i", "ii"]
        )
        | numbers,
        st.sampled_from(["", "", "i", "u"]),
    ),
    max_size=3,
).map(",".join)
form_of_lines = st.lists(st.tuples(keys, fields, stamps).map(" ".join), max_size=6)
good_lines = st.lists(
    st.builds(
        "{} {} {}".format,
        st.sampled_from(["a", "a,t=x", "b,t=x,host=h,u=y", "ä,t=ü"]),
        st.lists(st.sampled_from(["f=1", "g=2.5", "h=-7i", "1=true", "f=1e3"]), min_size=1, max_size=3).map(
            ",".join
        ),
        st.integers(10**18, 2 * 10**18).map(str)
        | st.sampled_from(["1790000000000000000", "1790000001500000000"]),
    ),
    max_size=40,
)


class OneByOne(Parsing):
    """Looks at each line by itself, and thoroughly."""

    def _take_rows(self, piece: bytes) -> bool:
        return False

    def _take_plain(self, lines: list[bytes], out: list[bytes]) -> None:
        for _ in lines:
            self._take_line(self._offset, out)


def readings(parsing: Parsing) -> list[tuple[contract.Reading, bool]]:
    while parsing.step():
        pass
    taken = map(contract.parse_reading, parsing.payload.splitlines())
    return [(reading, isinstance(reading.value, bool)) for reading in taken]


@given(form_of_lines | good_lines, st.booleans(), st.sampled_from([1, 10**6]))
@costly(250)
@example(["a,t=x f=1 1790000000000000000", "a f=1 1790000000120000000", "# f=1 1790000000120000000"], True, 1)
@example(["a,t=x f=1 1790000000000000000", "a,t=x f=1.5 1790000000120000000"], False, 1)
@example(["a f=1 1790000000000000000", "a f=1790000000000000000 2.5 1790000000000000000"], False, 1)
@example(["a f=1", "a f=1 2 1790000000000000000"], False, 1)
@example(["a  1790000000000000000", "a f=1 "], False, 1)
@example(["a f,1=g=2 1790000000000000000"], False, 1)
@example(["a f=9007199254740993 1790000000000000000"], False, 1)
@example(["a f=999999999999999999 1000000000000000000"], False, 1)
@example(["a f=1,g=5.5i 1790000000000000000", "a f=1e5i,g=truei 1790000000000000000"], False, 1)
@example(["a,t=x f=1,g=2 10", "a,t=y f=1,g=2,h=3 20", "a,t=z h=4 30"], True, 10**9)
@example(["a%b,host=5%,t=%s f%=1,%b=2 10", "a%b,host=5%,t=%s f%=1,%b=2 20"], True, 10**9)
@example(["a f=1,g=2 10", "a f,1,=2 10", "a f=1,g,2=3,=4 10", "a f=1 10"], True, 10**9)
@example(["a f=1 10", "b h=1 10", "a f=1,h=2 10", "a,t=\0 f=1,h=2 10"], True, 10**9)
def test_lines_are_taken_alike_at_once_and_one_by_one(lines: list[str], ended: bool, unit: int) -> None:
    body = "\n".join(lines).encode() + b"\n" * ended
    cache = LineCache("edge-1", "host")
    singly = OneByOne(body, LineCache("edge-1", "host"), unit, NOW, LIMIT)
    expected = readings(singly)
    for worth in (0, 0, line_protocol._WORTH):  # twice, for what the cache remembers
        with patch.object(line_protocol, "_WORTH", worth):
            at_once = Parsing(body, cache, unit, NOW, LIMIT)
            assert readings(at_once) == expected
        assert (at_once.bad, at_once.count) == (singly.bad, len(expected))


@pytest.mark.parametrize("fields_of_line", ["f=1.5", "f=1i,g=-2.25,h=true"])
@pytest.mark.parametrize(
    "stamp", ["", " 1790000000000000000", " 17900000{0:02d}500000000", " 1790000000{0:09d}"]
)
def test_lines_of_the_commonest_form_are_taken_all_at_once(
    fields_of_line: str, stamp: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Parsing, "_take_plain", None)
    body = "".join(f"a,t=x{n % 3} {fields_of_line}{stamp.format(n)}\n" for n in range(90)).encode()
    assert parse(body).count == 90 * fields_of_line.count("=")


def test_a_line_of_comment_is_no_reading_however_it_reads() -> None:
    parsing = parse(b"# pump,site=north f=1 1790000000000000000\n#f=1\n# f=1\na f=1\n")
    assert (parsing.count, parsing.bad) == (1, [])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-1.50", -1.5),
        ("+2", 2.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("1E+3", 1000.0),
        ("007", 7.0),
        ("12i", 12),
        ("-0i", 0),
        ("7u", 7),
        ("9223372036854775807u", 9223372036854775807),
        ("T", True),
        ("False", False),
        ('""', ""),
        (r'"a \"b\" \\ \n"', r'a "b" \ \n'),
    ],
)
def test_a_value_is_read_by_its_kind(text: str, value: object) -> None:
    (one,) = taken(f"m f={text}".encode())
    assert one.value == value
    assert isinstance(one.value, bool) == isinstance(value, bool)


@pytest.mark.parametrize(
    "line",
    [
        "m",
        "m ",
        "m f",
        "m f=",
        "m =1",
        "m f=1,",
        "m f=1,,g=2",
        "m f=1 x",
        "m f=1 1 1",
        "m f=1 1.5",
        "m f=1 1_0",
        ",a=b f=1",
        "m,a f=1",
        "m,a= f=1",
        "m,=b f=1",
        "m,a=b=c f=1",
        "m,a=b,a=c f=1",
        "m, f=1",
        "m f=nan",
        "m f=inf",
        "m f=1e999",
        "m f=0x1",
        "m f=1.5i",
        "m f=-1u",
        "m f=9223372036854775808i",
        "m f=9223372036854775808u",
        "m f=18446744073709551616u",
        "m f=yes",
        'm f="x',
        'm f="x"y',
        "m f=1 999999999999999999999",
        "m\x01 f=1",
        f"{'m' * 300} f=1",
        "m," + ",".join(f"t{one}=x" for one in range(70)) + " f=1",
        f'm f="{"x" * 40_000}"',
    ],
)
def test_a_line_that_is_none_is_named_and_its_neighbours_are_taken(line: str) -> None:
    parsing = parse(f"a b=1\n\n# comment\n{line}\nc d=2\n".encode())
    assert [number for number, _ in parsing.bad] == [4]
    assert [json.loads(one)["metric"] for one in parsing.payload.splitlines()] == ["a_b", "c_d"]


def test_a_field_that_is_bad_takes_its_whole_line_with_it() -> None:
    parsing = parse(b"m a=1,b=2,c=x\n")
    assert (parsing.count, len(parsing.bad)) == (0, 1)


@pytest.mark.parametrize(
    ("unit", "stamp", "ts"),
    [
        (1, "1790000000123456789", "2026-09-21T14:13:20.123456789Z"),
        (1, "1790000000100000000", "2026-09-21T14:13:20.1Z"),
        (10**3, "1790000000000001", "2026-09-21T14:13:20.000001Z"),
        (10**6, "1790000000001", "2026-09-21T14:13:20.001Z"),
        (10**9, "1790000000", "2026-09-21T14:13:20Z"),
        (3600 * 10**9, "0", "1970-01-01T00:00:00Z"),
        (1, "-1", "1969-12-31T23:59:59.999999999Z"),
    ],
)
def test_times_are_read_by_their_precision(unit: int, stamp: str, ts: str) -> None:
    assert [one.ts for one in taken(f"m f=1 {stamp}\nm f=2".encode(), unit)] == [ts, ARRIVED]


def test_a_time_by_the_wrong_precision_is_refused_with_a_hint() -> None:
    ((_, reason),) = parse(b"m f=1 1790000000000000000", 10**9).bad
    assert "precision" in reason


def test_newlines_in_text_are_counted() -> None:
    parsing = parse(b'a b="1\n2\n3"\nbad\nc d="x\ny" oops\nworse\n')
    assert [number for number, _ in parsing.bad] == [4, 5, 7]
    assert parsing.count == 1


def test_the_list_of_bad_lines_is_bounded_and_a_hopeless_body_is_given_up() -> None:
    parsing = parse(b"bad\n" * (MAX_LISTED + 7) + b"a b=1\n")
    assert (len(parsing.bad), parsing.more, parsing.count, parsing.hopeless) == (MAX_LISTED, 7, 1, False)
    assert parse(b"bad\n" * (MAX_LISTED + MAX_COUNTED + 50)).hopeless


@pytest.mark.parametrize("field", ["f=1", 'f="x"'])
def test_a_small_body_cannot_become_a_large_one(field: str) -> None:
    head = b"m,t=" + b"x" * 30_000 + b" "
    with pytest.raises(BodyTooLargeError):
        parse(head + b",".join([field.encode()] * 20_000))


def test_the_payload_stays_within_its_limit() -> None:
    body = b"".join(b"m,t=%d f=%d %d\n" % (n % 9, n, 1_790_000_000_000_000_000 + n) for n in range(1000))
    for limit in (50_000, 90_000, 100_000, 150_000):
        try:
            assert len(parse(body, limit=limit).payload) <= limit
        except BodyTooLargeError:
            continue


def test_a_million_tags_are_not_all_remembered() -> None:
    to = LineCache("edge-1", "host")
    for first in range(0, 40_000, 1000):
        parse(b"".join(b"m,t=%d f=1\n" % number for number in range(first, first + 1000)), to=to)
    assert len(to.heads) < 20_000


def test_a_line_that_is_too_long_is_refused_and_the_next_taken() -> None:
    parsing = parse(b"m " + b",".join(b"f%d=1" % one for one in range(60_000)) + b"\na b=1\n")
    assert (parsing.count, [number for number, _ in parsing.bad]) == (1, [1])


def test_a_large_body_is_taken_in_steps() -> None:
    body = b"".join(b'm,t=%d f=%d,g="x" %d\n' % (n % 9, n, n) for n in range(20_000))
    stored = taken(body)
    assert [one.value for one in stored if one.metric == "m_f"] == list(range(20_000))
    assert math.isclose(len(stored), 40_000)
