"""From notifications of OPC UA to readings."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC
from typing import Any

import pytest
from asyncua import ua
from asyncua.ua.status_codes import StatusCodes
from hypothesis import given
from hypothesis import strategies as st

from agent import contract
from agent.leaf.inputs.formats.message import TopicNames
from agent.leaf.inputs.opcua.nodes import covers, leads
from agent.leaf.inputs.opcua.notifications import (
    FollowedNode,
    NotificationPiece,
    built,
    endings,
    means,
    sort,
)

SOURCE = ua.DateTime(2026, 3, 1, 12, 0, 0, 500_000, UTC)
SERVER = ua.DateTime(2026, 3, 1, 12, 0, 1, tzinfo=UTC)
NODES = [
    FollowedNode(f"ns=2;i={number}", f"Line/{name}", TopicNames("line", name))
    for number, name in enumerate("abc")
]
GOOD = 0


def value(of: object, status: int = GOOD, source: ua.DateTime | None = SOURCE) -> ua.DataValue:
    variant = of if isinstance(of, ua.Variant) else ua.Variant(of)
    return ua.DataValue(variant, ua.StatusCode(ua.UInt32(status)), source, SERVER)


def message(*values: tuple[int, ua.DataValue], number: int = 1) -> ua.NotificationMessage:
    items = [
        ua.MonitoredItemNotification(ClientHandle=ua.IntegerId(handle), Value=of) for handle, of in values
    ]
    data = ua.DataChangeNotification(MonitoredItems=items)
    return ua.NotificationMessage(SequenceNumber=ua.Counter(number), NotificationData=[data])


def parts_of(message: ua.NotificationMessage) -> list[NotificationPiece]:
    return [built(items, "edge-1") for items in sort(message, NODES).pieces]


def rows(parts: list[NotificationPiece]) -> list[dict[str, Any]]:
    return [json.loads(line) for piece in parts for line in piece.payload.splitlines()]


def reasons(parts: list[NotificationPiece]) -> list[str]:
    return [letter.reason for piece in parts for letter in piece.letters]


@pytest.mark.parametrize("text", ["a\udca4b", ua.LocalizedText("a\udca4b")])
def test_text_that_is_not_utf_8_is_a_letter_and_what_comes_with_it_is_stored(text: object) -> None:
    found = parts_of(message((0, value(text)), (1, value(1.5))))
    assert [row["value"] for row in rows(found)] == [1.5]
    assert reasons(found) == ["its text is not UTF-8"]
    assert "\\udca4" in found[0].letters[0].received.decode()


@pytest.mark.parametrize(
    ("given_value", "stored"),
    [
        (21.5, 21.5),
        (True, True),
        ("on", "on"),
        (ua.LocalizedText("an"), "an"),
        (2**40, 2**40),
        ("a\nb", "a b"),
        ([1, -2.5], [1, -2.5]),
        (b"\0\1\xff", {"base64": "AAH/"}),
    ],
)
def test_a_value_is_a_reading_with_the_time_of_its_source(given_value: object, stored: object) -> None:
    (row,) = rows(parts_of(message((1, value(given_value)))))
    assert (row["device"], row["metric"], row["value"]) == ("line", "b", stored)
    assert "tags" not in row or row["tags"] == {}
    assert row["ts"] == SOURCE.timestamp()


def test_without_a_time_of_the_source_that_of_the_server_is_taken() -> None:
    (row,) = rows(parts_of(message((0, value(1.0, source=None)))))
    assert row["ts"] == SERVER.timestamp()


def test_a_status_that_is_not_good_is_kept_beside_the_value() -> None:
    uncertain = value(1.0, StatusCodes.UncertainLastUsableValue)
    bad = value(2.0, StatusCodes.BadSensorFailure)
    stored = rows(parts_of(message((0, uncertain), (1, bad))))
    assert [row["tags"] for row in stored] == [
        {"status": "UncertainLastUsableValue"},
        {"status": "BadSensorFailure"},
    ]


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (value(None, StatusCodes.BadSensorFailure), "BadSensorFailure, and it has no value"),
        *((value(array), "array that is empty") for array in (["a"], [True], [[1.0]], [1.0, math.nan])),
        (value(float("nan")), "nan is not a finite number"),
        (value([1.0] * (contract.MAX_ARRAY + 1)), f"more than {contract.MAX_ARRAY} numbers"),
        (value(bytes(contract.MAX_BYTES + 1)), f"more than {contract.MAX_BYTES} bytes"),
    ],
)
def test_what_is_no_value_becomes_a_letter_and_the_others_are_stored(of: ua.DataValue, why: str) -> None:
    parts = parts_of(message((0, of), (1, value(3.0))))
    assert [row["value"] for row in rows(parts)] == [3.0]
    (reason,) = reasons(parts)
    assert why in reason


def test_a_large_value_is_a_piece_of_its_own() -> None:
    parts = parts_of(message((0, value(1.0)), (1, value(bytes(2**20))), (2, value(2.0))))
    assert [piece.count for piece in parts] == [1, 1, 1]
    alone = parts_of(message((1, value(bytes(2**20)))))
    assert [piece.count for piece in alone] == [1]


def test_a_variable_that_has_no_value_yet_is_passed_over() -> None:
    parts = sort(message((0, value(None, StatusCodes.BadWaitingForInitialData))), NODES)
    assert (parts.pieces, parts.waiting) == ([], [0])


def test_a_queue_that_was_too_short_is_reported_and_its_value_stored() -> None:
    one = message((2, value(1.0, 0x0480)))
    assert [item.overflowed for item in sort(one, NODES).pieces[0]] == [True]
    (row,) = rows(parts_of(one))
    assert "tags" not in row or row["tags"] == {}


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.floats() | st.text(max_size=20_000) | st.booleans()), max_size=60
    )
)
def test_a_message_makes_the_same_pieces_again_that_fit_a_batch(values: Sequence[tuple[int, object]]) -> None:
    one = message(*((handle, value(of)) for handle, of in values))
    first, second = parts_of(one), parts_of(one)
    assert first == second
    assert all(len(piece.payload) <= contract.MAX_BATCH_BYTES for piece in first)
    known = [of for handle, of in values if handle < len(NODES)]
    assert sum(piece.count + len(piece.letters) for piece in first) == len(known)


def test_the_end_of_a_subscription_is_said_and_its_transfer_is_none() -> None:
    def status(code: int) -> ua.NotificationMessage:
        data = ua.StatusChangeNotification(Status=ua.StatusCode(ua.UInt32(code)))
        return ua.NotificationMessage(NotificationData=[data])

    assert endings(status(StatusCodes.BadTimeout)) == ["BadTimeout"]
    assert endings(status(StatusCodes.GoodSubscriptionTransferred)) == []


def test_a_digest_changes_with_what_a_handle_means() -> None:
    renamed = [NODES[0]._replace(names=TopicNames("line", "z")), *NODES[1:]]
    assert len({means(NODES), means(NODES[::-1]), means(NODES[:2]), means(renamed)}) == 4


@pytest.mark.parametrize(
    ("pattern", "path", "selected"),
    [
        ("Line*/Speed", "Line1/Speed", True),
        ("Line*/Speed", "Line1/Motor/Speed", False),
        ("Line?/*", "Line12/Speed", False),
        ("Line1/**", "Line1/Motor/Speed", True),
        ("Line1/**", "Line1", False),
        ("**", "Line1/Motor", True),
        ("**", "Server/ServerStatus", False),
        ("Server/ServerStatus/*", "Server/ServerStatus/State", True),
    ],
)
def test_a_pattern_selects_paths_by_names_and_looks_only_where_they_lead(
    pattern: str, path: str, selected: bool
) -> None:
    names, wanted = path.split("/"), pattern.split("/")
    assert covers(names, wanted) is selected
    if selected:
        assert all(leads(names[:depth], wanted) for depth in range(1, len(names) + 1))
