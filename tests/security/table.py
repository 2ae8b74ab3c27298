"""What got through, as it is kept beside these tests and as the document shows it. Pure but for two files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypedDict

from agent.contract import ACCOUNT
from tests.security.catalogue import Subject
from tests.security.plant import SYSTEM, TENANT, Place
from tests.security.trying import IDENTITIES, Found, Identity

ALLOWED = Path(__file__).with_name("allowed.json")
DOCUMENT = Path(__file__).parents[2] / "docs" / "security.md"
BEGIN, END = "<!-- what was tried: begin -->\n", "<!-- what was tried: end -->\n"
OWNER = "owner of the hub"
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
