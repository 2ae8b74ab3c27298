"""The options of the input `opcua`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.config import Seconds
from agent.leaf.inputs.formats.message import TopicNames
from agent.leaf.inputs.opcua import NodeSelection, OpcuaOptions, Position, parse_position, problems

NODES = [NodeSelection(path="Line1/*")]
FILES = {"cert": Path("a.crt"), "key": Path("a.key"), "server_cert": Path("b.crt")}


def options(**given: Any) -> OpcuaOptions:
    return OpcuaOptions(**{"url": "opc.tcp://192.0.2.10:4840", "nodes": NODES, **given})


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (
            {"url": "http://192.0.2.10:4840"},
            "url 'http://192.0.2.10:4840' does not name a server; write it as opc.tcp://<host>:4840",
        ),
        ({"url": "opc.tcp:user:secret@192.0.2.10"}, "url does not name a server"),
        ({"url": "opc.tcp://192.0.2.10:none"}, "does not name a server; write it as opc.tcp://<host>:4840"),
        (
            {"url": "opc.tcp://user:secret@192.0.2.10"},
            "url has a user in it; write it as opc.tcp://<host>:4840, and the user in user and password_file",
        ),
        ({"nodes": []}, "nodes is empty"),
        ({"events": ["Server"]}, "events has 'Server', which is not a node id"),
        ({"queue": 0}, "queue is 0"),
        ({"keep": Seconds(1.0)}, "keep is 1.0 s"),
        ({"publish": Seconds(0.001)}, "publish is 0.001 s"),
        ({"interval": Seconds(90_000.0)}, "interval is 90000.0 s"),
        ({"security": "encrypt"}, "needs cert, key and server_cert"),
        (FILES, "stand without security"),
        ({"user": "u"}, "go together"),
        ({"user": "u", "password_file": Path("p")}, "would go unprotected"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(given: dict[str, Any], wrong: str) -> None:
    (found,) = problems(options(**given))
    assert wrong in found
    assert "secret" not in found


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"nodes": [], "events": ["i=2253"]},
        {"security": "sign", **FILES, "user": "u", "password_file": Path("p")},
        {"url": "opc.tcp://localhost:4840", "user": "u", "password_file": Path("p")},
    ],
)
def test_what_can_be_used_has_no_mistake(given: dict[str, Any]) -> None:
    assert list(problems(options(**given))) == []


@pytest.mark.parametrize(
    ("node", "wrong"),
    [
        (NodeSelection(), "neither or both"),
        (NodeSelection(id="i=1", path="a"), "neither or both"),
        (NodeSelection(id="2;s=a"), "not a node id"),
        (NodeSelection(path="a//b"), "not a path"),
        (NodeSelection(path="a", metric=""), "metric is empty"),
        (NodeSelection(path="a", device="{x}"), "device '{x}' is not a template"),
    ],
)
def test_a_selection_that_selects_nothing_is_refused(node: NodeSelection, wrong: str) -> None:
    (found,) = node.problems()
    assert wrong in found


def test_the_names_of_a_path_fill_device_and_metric() -> None:
    assert NodeSelection(path="*", device="{1}", metric="{2+}").names("Line1/Motor/Speed") == TopicNames(
        "Line1", "Motor.Speed"
    )
    assert NodeSelection(id="i=1").names("Speed") == TopicNames(None, "Speed")


def test_a_position_comes_back_as_it_was_and_one_of_a_later_version_is_refused() -> None:
    position = Position("2026-03-01 12:00:00+00:00", 7, "ab12", 41, 2)
    assert parse_position(position.encode()) == position
    with pytest.raises(ValueError, match="version 2"):
        parse_position(position.encode().replace('"v":1', '"v":2'))
    with pytest.raises(ValueError, match="Expected"):
        parse_position('"text"')
