"""Messages of syslog as readings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent import contract
from agent.leaf.inputs.formats import Parsed, join_parsed
from agent.leaf.inputs.syslog.framing import framed
from agent.leaf.inputs.syslog.parse import MAX_PARAMETERS, MessageParser

NOW = 1_790_000_000_000_000_000
ARRIVAL = contract.machine_time(NOW)


def parsed(*messages: bytes) -> Parsed:
    return join_parsed(list(MessageParser("log", "10.0.0.9").parts(framed(list(messages)), NOW)))


def rows(*messages: bytes) -> list[dict[str, Any]]:
    found = parsed(*messages)
    assert found.bad == ()
    lines = found.payload.splitlines()
    assert len(lines) == found.count
    assert all(contract.parse_reading(line) for line in lines)
    return [json.loads(line) for line in lines]


def row(message: bytes) -> dict[str, Any]:
    (only,) = rows(message)
    return only


def test_a_message_of_rfc_5424_says_all() -> None:
    assert row(
        b"<165>1 2003-10-11T22:14:15.003+02:00 web.example app - ID47 "
        b'[ex@32473 iut="3" src="a\\"b\\]\\\\c"][empty] \xef\xbb\xbfAn \xc3\xa4pplication\nentry'
    ) == {
        "ts": "2003-10-11T22:14:15.003+02:00",
        "device": "web.example",
        "metric": "log",
        "value": "An äpplication\nentry",
        "tags": {
            "facility": "local4",
            "severity": "notice",
            "app": "app",
            "msgid": "ID47",
            "ex@32473.iut": "3",
            "ex@32473.src": 'a"b]\\c',
            "empty": "",
        },
    }


def test_what_a_message_leaves_out_is_filled_in() -> None:
    assert row(b"<0>1 - - - - - -") == {
        "ts": ARRIVAL,
        "device": "10.0.0.9",
        "metric": "log",
        "value": "",
        "tags": {"facility": "kern", "severity": "emerg"},
    }


@pytest.mark.parametrize(
    ("message", "device", "tags", "text"),
    [
        (b"Oct 11 22:14:15 box su: 'su' failed", "box", {"app": "su"}, "'su' failed"),
        (b"Oct  1 22:14:15 box cron[12]: x", "box", {"app": "cron", "procid": "12"}, "x"),
        (b"Oct 11 22:14:15 su[3]: x", "10.0.0.9", {"app": "su", "procid": "3"}, "x"),
        (b"Oct 11 22:14:15 fe80::1 no tag", "fe80::1", {}, "no tag"),
        (b"29: *Mar  1 18:46:11: %SYS-5-X: up", "10.0.0.9", {}, "29: *Mar  1 18:46:11: %SYS-5-X: up"),
        (b"just text", "10.0.0.9", {}, "just text"),
    ],
)
def test_a_message_of_rfc_3164_is_read_as_far_as_it_is_one(
    message: bytes, device: str, tags: dict[str, str], text: str
) -> None:
    found = row(b"<13>" + message)
    time = {"timestamp": message[:15].decode()} if message.startswith(b"Oct") else {}
    assert (found["ts"], found["device"], found["value"]) == (ARRIVAL, device, text)
    assert found["tags"] == {"facility": "user", "severity": "notice", **time, **tags}


def test_the_time_of_rfc_3339_that_rsyslog_writes_before_an_old_message_counts() -> None:
    found = row(b"<13>2026-11-23T08:36:40.123456+01:00 box app: x")
    assert (found["ts"], found["device"]) == ("2026-11-23T08:36:40.123456+01:00", "box")
    assert "timestamp" not in found["tags"]


@pytest.mark.parametrize(
    "time", ["2026-02-31T00:00:00Z", "2026-11-23T08:36:40", "2026-11-23T24:00:00Z", "9999-12-31T23:59:59Z"]
)
def test_a_time_that_no_reading_can_have_is_a_tag(time: str) -> None:
    found = row(f"<13>1 {time} h - - - - x".encode())
    assert (found["ts"], found["tags"]["timestamp"]) == (ARRIVAL, time)


def test_a_time_of_a_device_does_not_pass_for_one_by_the_clock_of_this_machine() -> None:
    assert row(b"<13>1 2026-11-23T08:36:40-00:00 h - - - - x")["ts"] == "2026-11-23T08:36:40Z"


def test_text_longer_than_a_reading_may_have_is_split_and_nothing_of_it_is_lost() -> None:
    text = "ä" * (2 * contract.MAX_TEXT + 1)
    found = rows(b"<13>1 - h - - - - " + text.encode())
    assert "".join(part["value"] for part in found) == text
    assert [part["tags"]["part"] for part in found] == ["1/3", "2/3", "3/3"]


def test_bytes_that_are_not_utf_8_stay_readable() -> None:
    assert row(b"<13>1 - h - - - - caf\xe9")["value"] == "caf\\xe9"


@pytest.mark.parametrize(
    "structured",
    [
        b'[a b="1" b="2"]',
        b'[severity][x y="z"]',
        b"[a" + b"".join(b' p%d="x"' % number for number in range(MAX_PARAMETERS + 1)) + b"]",
    ],
    ids=["repeated", "a name of ours", "too many"],
)
def test_structured_data_that_makes_no_tags_is_kept_as_it_came(structured: bytes) -> None:
    tags = row(b"<13>1 - h - - - " + structured + b" x")["tags"]
    assert tags == {"facility": "user", "severity": "notice", "structured_data": structured.decode()}


def test_as_many_parameters_as_may_be_are_tags() -> None:
    structured = b"".join(b'[p%d x="y"]' % number for number in range(MAX_PARAMETERS))
    found = row(b"<13>1 2026-02-31T00:00:00Z h app 1 id " + structured + b" x")
    assert len(found["tags"]) == MAX_PARAMETERS + 6


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"no priority", "<PRI>"),
        (b"<192>x", "<PRI>"),
        (b"<01>x", "<PRI>"),
        (b"", "<PRI>"),
        (b"<13>1 2026-11-23T08:36:40Z h app", "the header has no"),
        (b"<13>1 - h - - - x", "the header has no"),
        (b'<13>1 - h - - - [a b="c] x', "not well formed"),
        (b"<13>1 - h - - - [] x", "not well formed"),
        (b'<13>1 - h - - - [a b="c"][d x', "not well formed"),
        (b'<13>1 - h - - - [a b="c"]x', "not followed by a space"),
        (b"<13>1 - h\x01 - - - - x", "control character"),
        (b"<13>1 - " + b"h" * 256 + b" - - - - x", "1 to 255 characters"),
        (b"<13>1 - h " + b"a" * (contract.MAX_TEXT + 1) + b" - - - x", "app is longer than"),
    ],
)
def test_what_can_not_be_read_is_named_and_its_neighbours_are_taken(message: bytes, reason: str) -> None:
    found = parsed(b"<13>before", message, b"<13>behind")
    ((offset, why),) = found.bad
    assert (found.count, offset) == (2, len(framed([b"<13>before"])))
    assert reason in why
