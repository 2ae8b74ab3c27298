"""Every subject in the name of everybody, for real: what gets through is what is written down, and what is
written down holds what it must.

With `PETIOLE_WRITE=1` (`make security-table`) what is found is written down, in `allowed.json` and the
document.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.base.nats_server import find_binary
from tests.security import catalogue, table
from tests.security.catalogue import OPERATIONS, Subject, subjects
from tests.security.plant import open_plant
from tests.security.trying import IDENTITIES, Identity, found

WHOLE = os.environ.get("PETIOLE_SECURITY") == "whole"
WRITES = os.environ.get("PETIOLE_WRITE") == "1"
EVERY = subjects()


def some(name: str) -> list[Subject]:
    """What a short run tries: all that is allowed, and of each kind of JetStream's operations the first."""
    known = table.read()[name]
    firsts = [group[0] if group[0] != "INFO" else "STREAM.INFO.{s}" for group in OPERATIONS.values()]
    allowed = {*known["sends"], *known["hears"]}
    return [
        one for one in EVERY if not one.what or one.template in allowed or any(_is(one, it) for it in firsts)
    ]


def _is(one: Subject, operation: str) -> bool:
    return one.what.partition(" ")[0] == operation.replace(".{s}", "").replace(".{c}", "")


@pytest.mark.timeout(600)  # the whole on a busy machine
async def test_nothing_gets_through_but_what_is_written_down(tmp_path: Path) -> None:
    expected = {} if WRITES else table.read()
    seen: dict[str, table.Allowed] = {}
    async with open_plant(tmp_path) as plant:
        for one in IDENTITIES:
            tried = EVERY if WHOLE or WRITES else some(one.name)
            seen[one.name] = table.told(one, await found(plant, one, tried))
    if WRITES:
        table.write(seen, EVERY)
    else:
        assert seen == expected, "after a wanted change: make security-table, and read what changed"


def test_the_document_shows_what_is_written_down() -> None:
    assert table.documented() == table.document(table.read(), EVERY), "make security-table"


def test_whatever_jetstream_can_be_asked_is_tried() -> None:
    """A newer server with a call that nobody has thought of fails here."""
    known = catalogue.operations_of(find_binary().read_bytes())
    assert len(known) > 20
    assert known - catalogue.tried_operations() == set()


AT_LEAVES = ("agent", "device", "MQTT user", "link", "tenant's link")
PAST_ANY_RULE = ("$JS.ACK.", "_R_.")
"""nats-server lets a link send these whatever it is told; see the document."""


def sent(*names: str) -> Iterator[tuple[str, str, list[str]]]:
    for name in names:
        for template, places in table.read()[name]["sends"].items():
            yield name, template, places


@pytest.mark.parametrize("name", AT_LEAVES)
def test_nobody_at_a_leaf_reaches_what_is_of_another_leaf(name: str) -> None:
    for _, template, places in sent(name):
        if "{other}" in template and not template.startswith(PAST_ANY_RULE):
            # A consumer of another leaf's name is nothing on one's own server.
            assert places == ["here"], template


OWN_MIRROR = ("$JS.API.STREAM.DELETE.COMMANDS", "$JS.API.STREAM.MSG.DELETE.COMMANDS")
"""A leaf's agent recreates its mirror of the commands, and takes out what programs have acknowledged."""


@pytest.mark.parametrize("name", [one.name for one in IDENTITIES])
def test_nobody_destroys_a_stream(name: str) -> None:
    destroying = {
        one.template for one in EVERY if one.group.endswith(": destroy") or one.group.endswith(" destroy")
    }
    for _, template, _ in sent(name):
        if template in destroying and (name != "agent" or template not in OWN_MIRROR):
            assert name == table.OWNER, template
            assert not template.startswith("$JS.{other}."), template


@pytest.mark.parametrize(
    "name", [one.name for one in IDENTITIES if one.name not in ("registrar", table.OWNER)]
)
def test_only_the_registrar_commands(name: str) -> None:
    assert [template for _, template, _ in sent(name) if template.startswith("cmd.")] == []


@pytest.mark.parametrize("one", [one for one in IDENTITIES if one.kind == "key"], ids=lambda one: one.name)
def test_nobody_hears_answers_to_another(one: Identity) -> None:
    heard = [template for template in table.read()[one.name]["hears"] if template.startswith("_INBOX")]
    own = {f"_INBOX_{one.inbox}", "_INBOX_{own}"}
    assert [template for template in heard if template.split(".")[0] not in own] == []


def test_a_leaf_takes_no_reading_and_no_change_of_a_stream_from_a_hub() -> None:
    for _, template, _ in sent(table.OWNER):
        assert not template.startswith(("tel.", "readings.", "$MQTT.", "cmd.", "_INBOX_device.", "$SYS."))
        if template.startswith("$JS.{other}.API.STREAM."):
            assert template.split(".")[4] in ("INFO", "MSG"), template
            assert ".MSG.DELETE." not in template
