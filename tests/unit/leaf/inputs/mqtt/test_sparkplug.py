"""Sparkplug B: integers of unsigned fields, the order of numbers, aliases, births and deaths, and bounds."""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from agent.leaf.inputs.mqtt import TopicTemplate
from agent.leaf.inputs.mqtt.sparkplug import SparkplugDecoder, Taken, birth_file
from agent.leaf.inputs.mqtt.sparkplug.birth_file import BirthFile
from agent.leaf.inputs.mqtt.sparkplug.nodes import (
    ASKS,
    ASKS_A_SECOND,
    FIRST_ASK,
    LONGEST_ASK,
    EdgeNode,
    NodeId,
    NodeTable,
    SequenceGap,
    TooManyError,
)
from agent.leaf.inputs.mqtt.sparkplug.payload import (
    DATASET,
    ELEMENT,
    MAX_METRICS,
    METRIC,
    ROW,
    TEMPLATE,
    parse_payload,
    rebirth_command,
    whole_number,
)
from tests.harness.sparkplug_node import metric, payload

NOW = 1_790_000_000_000_000_000
BD_SEQ = metric("bdSeq", datatype=8, long_value=4)
TEMP = metric("temp", alias=7, datatype=3, int_value=20)


class Host:
    """A decoder at a clock that a test sets."""

    def __init__(self, **bounds: int) -> None:
        self.decoder = SparkplugDecoder("edge-1", NodeTable(**bounds))
        self.now = 0.0

    def take(self, kind: str, data: bytes, *, node: str = "n", repeat: bool = False) -> Taken:
        topic = f"spBv1.0/g/{kind}/{node}" + ("/d" if kind.startswith("D") else "")
        return self.decoder.take(topic, data, self.now, NOW, repeat=repeat)

    def born(self, seq: int = 0, node: str = "n") -> Taken:
        return self.take("NBIRTH", payload(seq, BD_SEQ, TEMP), node=node)


def told(taken: Taken) -> list[tuple[Any, ...]]:
    """Device, metric, value and tags of the readings."""
    rows = [json.loads(line) for line in taken.payload.splitlines()]
    return [(row["device"], row["metric"], row["value"], row.get("tags", {})) for row in rows]


@given(st.data(), st.sampled_from([8, 16, 32, 64]), st.booleans(), st.sampled_from([32, 64]))
def test_an_integer_is_read_back_from_the_unsigned_field_that_has_room_for_it(
    data: st.DataObject, bits: int, signed: bool, wire: int
) -> None:
    if bits > wire:
        return
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    number = data.draw(st.integers(low, high))
    assert whole_number(number % 2**wire, wire, bits, signed) == number
    assert whole_number(number % 2**bits, wire, bits, signed) == number, "of its own bits only"


@given(st.integers(0, 2**64 - 1), st.sampled_from([8, 16, 32, 64]), st.booleans(), st.sampled_from([32, 64]))
def test_what_is_read_fits_its_type_and_is_what_the_field_says(
    raw: int, bits: int, signed: bool, wire: int
) -> None:
    raw %= 2**wire
    number = whole_number(raw, wire, bits, signed)
    if number is not None:
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        assert low <= number <= high
        assert number in (raw, raw - 2**wire, raw - 2**bits)


@given(st.integers(0, 255), st.lists(st.integers(0, 600), max_size=20))
def test_only_numbers_that_follow_each_other_make_no_gap(first: int, steps: list[int]) -> None:
    """Each step leaves out so many messages; 256 of them can't be seen."""
    node = EdgeNode()
    node.born(first, None, 0.0)
    number = first
    for left_out in steps:
        expected, number = (number + 1) % 256, (number + 1 + left_out) % 256
        gap = node.follow(number)
        assert gap == (None if left_out % 256 == 0 else SequenceGap("seq", expected, number))
        assert gap is None or gap.missing == left_out % 256
    assert node.after_gap == any(left_out % 256 for left_out in steps)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=20), st.integers(0, 60))
def test_a_message_that_is_sent_again_is_no_gap(numbers: list[int], back: int) -> None:
    node = EdgeNode()
    node.born(0, None, 0.0)
    for number in range(1, 100 + len(numbers)):
        assert node.follow(number % 256) is None
    last = 99 + len(numbers)
    assert node.follow((last - back) % 256, repeat=True) is None
    assert node.follow((last + 1) % 256) is None


@given(st.dictionaries(st.integers(0, 9), st.sampled_from("abc"), max_size=5), st.integers(0, 9))
def test_an_alias_means_what_the_last_birth_of_its_source_says(aliases: dict[int, str], alias: int) -> None:
    host = Host()
    host.born()
    host.take("DBIRTH", payload(1, metric("z", alias=alias, datatype=3, int_value=0)))
    born = [metric(name, alias=number, datatype=3, int_value=0) for number, name in aliases.items()]
    host.take("DBIRTH", payload(2, *born))
    taken = host.take("DDATA", payload(3, metric(alias=alias, int_value=2**32 - 1)))
    if alias in aliases:
        assert told(taken) == [("g/n/d", aliases[alias], -1, {})]
    else:
        assert [refusal.reason for refusal in taken.refused] == ["unknown_alias"]
        assert [(row[1], row[3]["reason"]) for row in told(taken)] == [("sparkplug_gap", "unknown_alias")]
        assert [command.topic for command in taken.commands] == ["spBv1.0/g/NCMD/n"]


@pytest.mark.parametrize(
    ("datatype", "sent", "value"),
    [
        (1, {"int_value": 0xFF}, -1),
        (1, {"int_value": 0xFFFFFF80}, -128),
        (1, {"int_value": 300}, "bad_value"),
        (4, {"long_value": 2**64 - 1}, -1),
        (5, {"int_value": 255}, 255),
        (5, {"int_value": 256}, "bad_value"),
        (7, {"long_value": 2**32 - 1}, 2**32 - 1),
        (8, {"long_value": 2**63 - 1}, 2**63 - 1),
        (8, {"long_value": 2**63}, "bad_value"),
        (9, {"float_value": 0.5}, 0.5),
        (10, {"double_value": float("nan")}, "bad_value"),
        (10, {"float_value": 1.0}, "bad_value"),
        (11, {"boolean_value": False}, False),
        (12, {"string_value": b"a\nb"}, "a b"),
        (13, {"long_value": 1_790_000_000_123}, "2026-09-21T14:13:20.123+00:00"),
        (13, {"long_value": 2**63}, "bad_value"),
        (16, {"dataset_value": b"\xff"}, "bad_value"),
        (16, {"int_value": 1}, "bad_value"),
        (17, {"bytes_value": b"\1"}, "unsupported_type"),
        (19, {"template_value": b"\xff"}, "bad_value"),
        (22, {"bytes_value": b"\xe9\x7b"}, [-23, 123]),
        (23, {"bytes_value": b"\1\2\3"}, "bad_value"),
        (24, {"bytes_value": bytes.fromhex("15cd5b07b168de3a")}, [123456789, 987654321]),
        (29, {"bytes_value": b"\xff" * 8}, "bad_value"),
        (30, {"bytes_value": struct.pack("<2f", 0.5, -2.0)}, [0.5, -2.0]),
        (31, {"bytes_value": struct.pack("<d", float("inf"))}, "bad_value"),
        (32, {"bytes_value": b"\x0c\0\0\0\x34\xd0"}, [0, 0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1]),
        (32, {"bytes_value": b"\xff\xff\xff\xff\x34"}, "bad_value"),
        (33, {"bytes_value": b"ABC\0hello\0"}, '["ABC","hello"]'),
        (33, {"bytes_value": b"\xff\0"}, "bad_value"),
        (34, {"bytes_value": struct.pack("<Q", 1_790_000_000_123)}, [1_790_000_000_123]),
        (24, {"bytes_value": b""}, "bad_value"),
        (35, {"bytes_value": b"\1"}, "bad_value"),
        (0, {"int_value": 1}, "unknown_type"),
        (0, {"double_value": 2.5}, 2.5),
        (3, {}, "bad_value"),
        (99, {"int_value": 1}, "bad_value"),
    ],
)
def test_a_value_is_read_by_its_type_or_refused_by_name(
    datatype: int, sent: dict[str, Any], value: object
) -> None:
    host = Host()
    taken = host.take("NBIRTH", payload(0, metric("m", datatype=datatype, **sent)))
    if taken.refused:
        (refusal,) = taken.refused
        assert refusal.reason == value
        assert refusal.letter.reason.endswith(": m")
    else:
        assert told(taken)[1:] == [("g/n", "m", value, {})]


def test_a_death_counts_only_for_the_birth_of_its_connection() -> None:
    host = Host()
    host.born()
    host.take("DBIRTH", payload(1, TEMP))
    old = host.take("NDEATH", payload(None, metric("bdSeq", datatype=8, long_value=3)))
    assert (told(old), [refusal.reason for refusal in old.refused]) == ([], ["old_death"])
    assert host.take("DDATA", payload(2, metric(alias=7, int_value=1))).refused == []
    dead = host.take("NDEATH", payload(None, BD_SEQ))
    assert told(dead) == [(device, "sparkplug_online", False, {}) for device in ("g/n", "g/n/d")]
    assert dead.commands == [], "a dead node can't answer"
    after = host.take("NDATA", payload(3, metric(alias=7, int_value=1)))
    assert [refusal.reason for refusal in after.refused] == ["unknown_alias"]
    assert len(after.commands) == 1


def dataset(columns: dict[str, int], *rows: list[dict[str, Any]]) -> dict[str, Any]:
    packed_rows = [[ELEMENT(**cell).SerializeToString() for cell in row] for row in rows]
    packed = [ROW(elements=row).SerializeToString() for row in packed_rows]
    names = [name.encode() for name in columns]
    table = DATASET(columns=names, types=list(columns.values()), rows=packed)
    return metric("t", datatype=16, dataset_value=table.SerializeToString())


def template(name: str, *below: dict[str, Any], **fields: Any) -> dict[str, Any]:
    packed = [METRIC(**fields).SerializeToString() for fields in below]
    return metric(name, datatype=19, template_value=TEMPLATE(metrics=packed, **fields).SerializeToString())


def test_a_dataset_is_a_reading_for_each_column_and_an_odd_column_costs_no_other() -> None:
    columns = {"n": 3, "on": 11, "text": 12, "odd": 10, "some": 10}
    rows: list[list[dict[str, Any]]] = [
        [
            {"int_value": number},
            {"boolean_value": bool(number)},
            {"string_value": b"a"},
            {"double_value": float("nan")},
            {"double_value": 0.5} if number else {},
        ]
        for number in range(2)
    ]
    taken = Host().take("NBIRTH", payload(0, dataset(columns, *rows)))
    assert [row[1:3] for row in told(taken)[1:]] == [
        ("t/n", [0, 1]),
        ("t/on", [0, 1]),
        ("t/text", '["a","a"]'),
        ("t/some", "[null,0.5]"),
    ]
    (refusal,) = taken.refused
    assert (refusal.reason, "t/odd" in refusal.letter.reason) == ("bad_value", True)
    (refusal,) = Host().take("NBIRTH", payload(0, dataset({"n": 3}, [], rows[0]))).refused
    assert "another number than columns" in refusal.letter.reason


def test_a_template_is_a_reading_for_each_member_also_by_its_alias_alone() -> None:
    host = Host()
    motor = template(
        "motor",
        metric("speed", datatype=3, int_value=5),
        template("fan", metric("on", datatype=11, boolean_value=True)),
    )
    born = host.take("NBIRTH", payload(0, {**motor, "alias": 4}, template("_types_/m", is_definition=True)))
    assert [row[1:3] for row in told(born)[1:]] == [("motor/speed", 5), ("motor/fan/on", True)]
    changed = template("motor", metric("speed", int_value=2**32 - 6))
    data = host.take("NDATA", payload(1, {**changed, "alias": 4}))
    assert [row[1:3] for row in told(data)] == [("motor/speed", -6)]
    del changed["name"]
    data = host.take("NDATA", payload(2, {**changed, "alias": 4, "datatype": 0}))
    assert [row[1:3] for row in told(data)] == [("motor/speed", -6)]


def test_templates_are_bounded() -> None:
    deep = metric("on", datatype=11, boolean_value=True)
    for _ in range(20):
        deep = template("x", deep)
    (refusal,) = Host().take("NBIRTH", payload(0, deep)).refused
    assert refusal.reason == "unsupported_type"
    wide = template("w", *(metric(str(number), datatype=3, int_value=0) for number in range(3_000)))
    taken = Host().take("NBIRTH", payload(0, wide, {**wide, "name": b"v"}))
    assert taken.count <= MAX_METRICS + 1
    assert {refusal.reason for refusal in taken.refused} == {"too_many"}
    assert sum(refusal.times for refusal in taken.refused) + taken.count == 6_001


DEATH = payload(None, BD_SEQ)


def test_a_death_under_a_number_of_two_connections_kills_only_a_node_that_stays_silent() -> None:
    host = Host()
    host.born()
    host.now = 100.0
    host.born()
    stale = host.take("NDEATH", DEATH)
    assert (told(stale), [command.topic for command in stale.commands]) == ([], ["spBv1.0/g/NCMD/n"])
    assert told(host.take("NDATA", payload(1, metric(alias=7, int_value=1)))) == [("g/n", "temp", 1, {})]
    assert host.decoder.due() is None, "it has shown that it lives"
    real = host.take("NDEATH", DEATH)
    assert told(real) == [("g/n", "sparkplug_online", False, {})]


def test_a_node_that_does_not_answer_after_a_doubted_death_is_dead() -> None:
    host = Host()
    host.born()
    host.now = 100.0
    host.born()
    host.take("NDEATH", DEATH)
    due = host.decoder.due()
    assert due is not None
    assert told(host.decoder.decide(due - 0.1, NOW)) == []
    assert told(host.decoder.decide(due, NOW)) == [("g/n", "sparkplug_online", False, {})]
    assert host.decoder.due() is None


@pytest.mark.parametrize("by", ["agent", "another host"])
def test_births_that_were_asked_for_are_no_other_connection(by: str) -> None:
    host = Host()
    host.born()
    if by == "agent":
        assert host.take("NDATA", payload(9)).commands
    else:
        host.take("NCMD", rebirth_command(0))
    host.born()
    assert told(host.take("NDEATH", DEATH)) == [("g/n", "sparkplug_online", False, {})]


def test_many_nodes_are_not_asked_at_once() -> None:
    host = Host()
    asked = 0
    while host.now < 10 and asked < 200:
        for number in range(200):
            asked += len(host.take("NDATA", payload(0), node=str(number)).commands)
        assert asked <= ASKS + host.now * ASKS_A_SECOND + 1
        host.now += 1.0
    assert asked >= 110


class Kept:
    """Decoders with a file of births, each in its turn."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.restart()

    def restart(self) -> None:
        self.file = BirthFile(self._path, structlog.get_logger())
        self.file.load()
        self.host = Host()
        self.host.decoder = SparkplugDecoder("edge-1", self.file.table)

    def take(self, kind: str, data: bytes) -> Taken:
        taken = self.host.take(kind, data)
        self.file.save()
        return taken


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    one = Kept(tmp_path / "mqtt" / "x.births")
    one.take("NBIRTH", payload(0, BD_SEQ, TEMP))
    one.take("DBIRTH", payload(1, metric("speed", alias=7, datatype=3, int_value=1)))
    one.take("NDATA", payload(2, metric(alias=7, int_value=2)))
    return one


def test_births_are_kept_over_a_restart_if_no_message_is_missing(kept: Kept) -> None:
    kept.restart()
    taken = kept.take("DDATA", payload(3, metric(alias=7, int_value=5)))
    assert (told(taken), taken.commands) == ([("g/n/d", "speed", 5, {})], [])
    kept.restart()
    taken = kept.take("NDATA", payload(4, metric(alias=7, int_value=6)))
    assert (told(taken), taken.commands) == ([("g/n", "temp", 6, {})], [])


@pytest.mark.parametrize("seq", [0, 2, 4, 200, None])
def test_kept_births_name_nothing_if_a_message_may_be_missing(kept: Kept, seq: int | None) -> None:
    kept.restart()
    taken = kept.take("DDATA", payload(seq, metric(alias=7, int_value=5)))
    assert all(row[1] == "sparkplug_gap" for row in told(taken))
    assert [refusal.reason for refusal in taken.refused] == ["unknown_alias"]
    assert len(taken.commands) == 1


def test_a_birth_or_death_after_a_restart_replaces_kept_births(kept: Kept) -> None:
    kept.restart()
    kept.take("NBIRTH", payload(0, BD_SEQ, metric("other", alias=7, datatype=3, int_value=1)))
    kept.restart()
    assert told(kept.take("NDATA", payload(1, metric(alias=7, int_value=5)))) == [("g/n", "other", 5, {})]
    kept.take("NDEATH", DEATH)
    kept.restart()
    taken = kept.take("NDATA", payload(2, metric(alias=7, int_value=5)))
    assert [refusal.reason for refusal in taken.refused] == ["unknown_alias"]


def test_kept_births_of_an_earlier_start_of_the_machine_count_only_if_the_file_was_closed(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    boot = tmp_path / "boot"
    boot.write_text("another")
    kept.file.close()
    monkeypatch.setattr(birth_file, "_BOOT", boot)
    kept.restart()
    assert told(kept.take("DDATA", payload(3, metric(alias=7, int_value=5)))) == [("g/n/d", "speed", 5, {})]
    boot.write_text("yet another")
    kept.restart()
    assert len(kept.file.table) == 0


@pytest.mark.parametrize("end", [b'{"type":"no', b"\0\0\0", b"\xff\n"])
def test_a_torn_file_of_births_counts_as_empty(kept: Kept, tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "mqtt" / "x.births"
    path.write_bytes(path.read_bytes() + end)
    kept.restart()
    assert len(kept.file.table) == 0


def test_a_device_that_has_died_is_unknown_until_it_is_born_again() -> None:
    host = Host()
    host.born()
    host.take("DBIRTH", payload(1, TEMP))
    host.take("DDEATH", payload(2))
    taken = host.take("DDATA", payload(3, metric(alias=7, int_value=1)))
    assert [(row[1], row[3].get("reason")) for row in told(taken)] == [("sparkplug_gap", "no_birth")]
    host.take("DBIRTH", payload(4, TEMP))
    assert told(host.take("DDATA", payload(5, metric(alias=7, int_value=1)))) == [("g/n/d", "temp", 1, {})]


def test_a_node_is_asked_for_its_births_at_a_bounded_rate_and_less_and_less_often() -> None:
    host = Host()
    asked, gaps = [], 0
    while host.now < 4000:
        taken = host.take("NDATA", payload(1, metric("a", datatype=3, int_value=1)))
        gaps += len(taken.gaps)
        if taken.commands:
            asked.append(host.now)
        host.now += 1
    assert gaps == 1, "that its birth is unknown is said once"
    between = [later - before for before, later in pairwise(asked)]
    assert between[:3] == [FIRST_ASK, 2 * FIRST_ASK, 4 * FIRST_ASK]
    assert between[-1] == LONGEST_ASK
    host.born()
    assert len(host.take("NDATA", payload(9)).commands) == 0, "the bound holds over a birth"


def test_births_beyond_the_bounds_are_refused_with_a_remedy_and_their_readings_are_kept() -> None:
    host = Host(metrics=7, nodes=2)
    assert host.born().refused == []
    taken = host.take("DBIRTH", payload(1, *(metric(f"m{i}", datatype=3, int_value=i) for i in range(5))))
    (refusal,) = taken.refused
    assert refusal.reason == "too_many"
    assert "more than 7; give inputs of their own" in refusal.letter.reason
    assert len(told(taken)) == 6
    host.take("NDEATH", payload(None, BD_SEQ))
    assert host.born(node="other").refused == []
    assert host.born(node="third").refused == [], "a dead node gives its place up"
    (refusal,) = host.born(node="fourth").refused
    assert "more than 2 edge nodes" in refusal.letter.reason


def test_a_node_may_have_no_more_devices_than_the_bound() -> None:
    table = NodeTable(devices=2)
    ident = NodeId("g", "n")
    table.node(ident, 0.0).born(0, None, 0.0)
    for device in (None, "a", "b", "b"):
        table.register(ident, device, [])
    with pytest.raises(TooManyError):
        table.register(ident, "c", [])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xff", "not a payload"),
        (payload(256), "seq is 256"),
        (payload(0, *(metric("m") for _ in range(MAX_METRICS + 1))), "more than 5000"),
        (payload(0, metric(b"\xff")), "not a payload"),
        (payload(0, uuid=b"SPBV1.0_COMPRESSED"), "compressed"),
        (bytes(2**20 + 1), "longer than"),
    ],
)
def test_what_is_no_payload_is_refused(data: bytes, reason: str) -> None:
    (refusal,) = Host().take("NDATA", data).refused
    assert refusal.reason == "bad_message"
    assert reason in refusal.letter.reason


@pytest.mark.parametrize(
    "topic", ["spBv1.0/g/NDATA", "spBv1.0/g/NDATA/n/d", "spBv1.0/g/DDATA/n", "x/g/NDATA/n"]
)
def test_what_is_no_topic_is_refused(topic: str) -> None:
    (refusal,) = SparkplugDecoder("edge-1").take(f"spBv1.0/{topic}", b"", 0.0, NOW).refused
    assert "no topic of Sparkplug B" in refusal.letter.reason


@pytest.mark.parametrize("topic", ["spBv1.0/g/NCMD/n", "spBv1.0/g/DCMD/n/d", "spBv1.0/STATE/host"])
def test_commands_and_states_of_hosts_are_passed_over(topic: str) -> None:
    assert SparkplugDecoder("edge-1").take(topic, b"{}", 0.0, NOW) == Taken()


def test_a_request_for_births_is_what_nodes_expect() -> None:
    (command,) = Host().take("NDATA", payload(0)).commands
    (asked,) = parse_payload(command.payload).metrics
    assert (asked.name, asked.datatype, asked.raw) == ("Node Control/Rebirth", 11, True)


def test_topics_of_sparkplug_say_device_and_metric_themselves() -> None:
    right = TopicTemplate(filter="spBv1.0/#", format="sparkplug")
    assert list(right.problems()) == []
    for wrong in (
        TopicTemplate(filter="plant/#", format="sparkplug"),
        TopicTemplate(filter="$share/a/spBv1.0/#", format="sparkplug"),
        TopicTemplate(filter="spBv1.0/#", device="{2}", format="sparkplug"),
    ):
        assert len(list(wrong.problems())) == 1
