"""From events of OPC UA to readings."""

from __future__ import annotations

import json
from datetime import UTC
from typing import Any

import pytest
from asyncua import ua
from asyncua.ua.object_ids import ObjectIds

from agent.leaf.inputs.opcua.coverage import Coverage, Kind, Record
from agent.leaf.inputs.opcua.events import event_filter, found, is_overflow, is_refresh

node = ua.NodeId.from_string
AT = ua.DateTime(2026, 3, 1, 12, 0, 0, 500_000, UTC)


def fields(**given: object) -> dict[str, object]:
    return {
        "id": b"\1\2",
        "type": node("i=2041"),
        "source_node": node("ns=2;i=7"),
        "source": "gate",
        "time": AT,
        "message": ua.LocalizedText("door\nopen"),
        "severity": 700,
        **given,
    }


def row(**given: object) -> dict[str, Any]:
    made = found(fields(**given), {"i=2041": "BaseEventType"}, 5.0)
    assert made.letter is None
    read: dict[str, Any] = json.loads(made.line)
    return read


def test_an_event_is_a_reading_with_its_fields_as_tags() -> None:
    assert row() == {
        "ts": AT.timestamp(),
        "metric": "event",
        "value": "door open",
        "tags": {"id": "0102", "type": "BaseEventType", "source": "gate", "severity": "700"},
    }
    alarm = row(condition="High", branch=node("i=0"), active=True, acknowledged=False, comment=None)
    assert {name: alarm["tags"].get(name) for name in ("condition", "branch", "active", "acknowledged")} == {
        "condition": "High",
        "branch": None,
        "active": "true",
        "acknowledged": "false",
    }
    assert row(time=None)["ts"] == 5.0, "that of the notification"


def test_an_event_is_known_by_its_condition_and_id() -> None:
    coverage = Coverage()

    def is_new(**given: object) -> bool:
        made = found(fields(**given), {}, 5.0)
        return coverage.note(Record(Kind.EVENT, made.key, made.time, made.value))

    high = {"condition_node": node("ns=2;i=8")}
    assert [is_new(**high), is_new(**high), is_new(**high, id=b"\3")] == [True, False, True]
    assert is_new(condition_node=node("ns=2;i=9"), id=b"\3")
    assert not is_new(**high, id=b"\3")


@pytest.mark.parametrize("text", ["\udca4", ua.LocalizedText("\udca4")])
def test_text_that_is_not_utf_8_is_a_letter(text: object) -> None:
    made = found(fields(message=text), {}, 5.0)
    assert made.line == b""
    assert made.letter is not None
    assert made.letter.reason == "its text is not UTF-8"


def test_events_about_the_queue_and_a_refresh_are_told_apart() -> None:
    def of(kind: int) -> dict[str, object]:
        return fields(type=ua.NodeId(ua.Int32(kind)))

    assert is_overflow(of(ObjectIds.EventQueueOverflowEventType))
    assert is_refresh(of(ObjectIds.RefreshStartEventType))
    assert not is_refresh(fields())
    assert not is_overflow(fields(type=None))


def test_a_filter_asks_for_each_field_once() -> None:
    clauses = event_filter().SelectClauses
    asked = {
        (clause.TypeDefinitionId.Identifier, *(part.Name for part in clause.BrowsePath)) for clause in clauses
    }
    assert len(asked) == len(clauses)
    assert (ObjectIds.AlarmConditionType, "ActiveState", "Id") in asked
