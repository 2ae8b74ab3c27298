"""Every subject in the name of everybody, for real: what gets through is what is written down, and what is
written down holds what it must.

With `PETIOLE_WRITE=1` (`make test SUITE=security WRITE=1`) what is found is written down, in `allowed.json`
and `allowed.md`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypedDict

import pytest

from agent.base.nats_server import find_binary, version_of
from agent.contract import ACCOUNT
from tests.security import catalogue
from tests.security.catalogue import OPERATIONS, Subject, subjects
from tests.security.plant import SYSTEM, TENANT, Place, open_plant
from tests.security.trying import IDENTITIES, Found, Identity, found

ALLOWED = Path(__file__).with_name("allowed.json")
DOCUMENT = Path(__file__).with_name("allowed.md")
BEGIN, END = "<!-- what was tried: begin -->\n", "<!-- what was tried: end -->\n"
OWNER = "owner of the hub"
TABLE_SERVER = "2.15.1"
"""The nats-server that the table was made with; a newer one may let less through."""
_SENDS, _HEARS = "→", "←"


class Allowed(TypedDict):
    """What an identity can do: by template, where what it sends is heard, and from where it hears."""

    sends: dict[str, list[str]]
    hears: dict[str, list[str]]


def told(identity: Identity, found: Found) -> Allowed:
    """The same for people: places by name."""
    return {
        "sends": _named(identity, found.sent),
        "hears": _named(identity, found.heard),
    }


def _ways(allowed: Mapping[str, Allowed]) -> set[tuple[str, str, str, str]]:
    """Each way apart: identity, direction, template, place."""
    return {
        (name, direction, template, place)
        for name, one in allowed.items()
        for direction, found in (("sends", one["sends"]), ("hears", one["hears"]))
        for template, places in found.items()
        for place in places
    }


def read() -> dict[str, Allowed]:
    """What is expected to get through, by identity."""
    known = json.loads(ALLOWED.read_text())
    return {
        name: {"sends": _spread(one["sends"]), "hears": _spread(one["hears"])} for name, one in known.items()
    }


def write(allowed: Mapping[str, Allowed], subjects: Iterable[Subject]) -> None:
    """Take what was found for what is expected, here and in the document."""
    rows = {name: {way: _gathered(one[way]) for way in ("sends", "hears")} for name, one in allowed.items()}
    ALLOWED.write_text(json.dumps(rows, indent=1) + "\n")
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    DOCUMENT.write_text(before + BEGIN + document(allowed, subjects) + END + rest.partition(END)[2])


def documented() -> str:
    """What the document says."""
    return DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0]


def document(allowed: Mapping[str, Allowed], subjects: Iterable[Subject]) -> str:
    """The part of the document."""
    groups: dict[str, list[Subject]] = {}
    for one in subjects:
        groups.setdefault(one.group, []).append(one)
    columns = [one.name for one in IDENTITIES if one.name != OWNER]
    rows: dict[tuple[str, ...], list[str]] = {}
    for group, several in groups.items():
        cells = tuple(_cell(allowed[name], several) for name in columns)
        if any(cells):
            rows.setdefault(cells, []).append(f"`{group}`")
    tried = sum(len(several) for several in groups.values())
    return (
        f"{tried} subjects were tried by each. Nothing but this gets through "
        f"({_SENDS} sends, and where it is heard; "
        f"{_HEARS} hears, and from where it is sent):\n\n"
        f"| subject | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}\n"
        + "".join(f"| {'<br>'.join(names)} | {' | '.join(cells)} |\n" for cells, names in rows.items())
        + f"\nOf JetStream's API at a leaf, the owner of a hub reaches {_reached(allowed[OWNER], groups)}.\n"
    )


def _gathered(way: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Subjects by places, which is shorter to read."""
    found: dict[str, list[str]] = {}
    for template, places in way.items():
        found.setdefault(", ".join(places), []).append(template)
    return dict(sorted(found.items()))


def _spread(found: Mapping[str, list[str]]) -> dict[str, list[str]]:
    return {template: places.split(", ") for places, several in found.items() for template in several}


def _named(identity: Identity, found: Mapping[str, Iterable[Place]]) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {}
    for template, places in found.items():
        shown = _alias(identity, template)
        rows[shown] = sorted({*rows.get(shown, ()), *_names(identity, places)})
    return {template: names for template, names in sorted(rows.items()) if names}


def _alias(identity: Identity, template: str) -> str:
    """On one's own server the API of one's own domain is `$JS.API`."""
    own = "$JS.hub.API." if identity.own == "hub" else "$JS.{own}.API."
    alike = template.replace("$JS.{own}.API.", own)
    return alike.replace(own, "$JS.API.") if identity.kind == "key" else template


def _names(identity: Identity, places: Iterable[Place]) -> Iterable[str]:
    for place in places:
        if place == identity.home and identity.kind != "link":
            # What the owner of a hub does there is nobody's concern.
            yield from () if identity.kind == "owner" else ("here",)
        elif place.account == SYSTEM:
            continue  # where JetStream's API itself is: a part of the same place
        elif place.account == TENANT:
            yield "tenant"
        elif place.account == ACCOUNT:
            yield "hub" if place.server == "hub" else "leaves"


def _cell(one: Allowed, several: list[Subject]) -> str:
    parts = []
    for sign, way in ((_SENDS, one["sends"]), (_HEARS, one["hears"])):
        by_places: dict[str, list[str]] = {}
        for subject in several:
            if subject.template in way:
                by_places.setdefault(", ".join(way[subject.template]), []).append(subject.what)
        parts += [f"{sign} {places}{_operations(what, several)}" for places, what in by_places.items()]
    return "<br>".join(parts)


def _operations(what: list[str], several: list[Subject]) -> str:
    """Which of the operations of a group; without the consumer where it holds for every one."""
    if len(what) == len(several):
        return ""
    shown: list[str] = []
    for one in what:
        name = one.partition(" ")[0]
        alike = [other.what for other in several if other.what.partition(" ")[0] == name]
        shown.append(name if set(alike) <= {*what} else one)
    return f": {', '.join(dict.fromkeys(shown))}"


def _reached(owner: Allowed, groups: Mapping[str, list[Subject]]) -> str:
    several = [
        one for group in groups.values() for one in group if one.template.startswith("$JS.{other}.API.")
    ]
    reached = (one.what.partition(" ")[0] for one in several if one.template in owner["sends"])
    return ", ".join(f"`{name.removesuffix('.a.b')}`" for name in dict.fromkeys(reached))


WHOLE = os.environ.get("PETIOLE_SECURITY") == "whole"
WRITES = os.environ.get("PETIOLE_WRITE") == "1"
EVERY = subjects()


def some(name: str) -> list[Subject]:
    """What a short run tries: all that is allowed, and of each kind of JetStream's operations the first."""
    known = read()[name]
    firsts = [group[0] if group[0] != "INFO" else "STREAM.INFO.{s}" for group in OPERATIONS.values()]
    allowed = {*known["sends"], *known["hears"]}
    return [
        one for one in EVERY if not one.what or one.template in allowed or any(_is(one, it) for it in firsts)
    ]


def _is(one: Subject, operation: str) -> bool:
    return one.what.partition(" ")[0] == operation.replace(".{s}", "").replace(".{c}", "")


@pytest.mark.timeout(600)  # the whole on a busy machine
async def test_nothing_gets_through_but_what_is_written_down(tmp_path: Path) -> None:
    expected = {} if WRITES else read()
    seen: dict[str, Allowed] = {}
    async with open_plant(tmp_path) as plant:
        for one in IDENTITIES:
            tried = EVERY if WHOLE or WRITES else some(one.name)
            seen[one.name] = told(one, await found(plant, one, tried))
    if WRITES:
        write(seen, EVERY)
    elif await version_of(find_binary()) == TABLE_SERVER:
        assert seen == expected, "after a wanted change: make test SUITE=security WRITE=1"
    else:
        assert _ways(seen) <= _ways(expected), "a newer server lets more through than the table states"


def test_the_document_shows_what_is_written_down() -> None:
    assert documented() == document(read(), EVERY), "make test SUITE=security WRITE=1"


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
        for template, places in read()[name]["sends"].items():
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
            assert name == OWNER, template
            assert not template.startswith("$JS.{other}."), template


@pytest.mark.parametrize("name", [one.name for one in IDENTITIES if one.name not in ("registrar", OWNER)])
def test_only_the_registrar_commands(name: str) -> None:
    assert [template for _, template, _ in sent(name) if template.startswith("cmd.")] == []


@pytest.mark.parametrize("one", [one for one in IDENTITIES if one.kind == "key"], ids=lambda one: one.name)
def test_nobody_hears_answers_to_another(one: Identity) -> None:
    heard = [template for template in read()[one.name]["hears"] if template.startswith("_INBOX")]
    own = {f"_INBOX_{one.inbox}", "_INBOX_{own}"}
    assert [template for template in heard if template.split(".")[0] not in own] == []


def test_a_leaf_takes_no_reading_and_no_change_of_a_stream_from_a_hub() -> None:
    for _, template, _ in sent(OWNER):
        assert not template.startswith(("tel.", "readings.", "$MQTT.", "cmd.", "_INBOX_device.", "$SYS."))
        if template.startswith("$JS.{other}.API.STREAM."):
            assert template.split(".")[4] in ("INFO", "MSG"), template
            assert ".MSG.DELETE." not in template
