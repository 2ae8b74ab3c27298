"""Edits [[leaf]] and [[user]] tables of configurations, keeping comments and order. Pure."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT

from agent.config import RegistrarConfig

Row = dict[str, Any]


class MemberError(ValueError):
    """The edit is impossible; the text has reason and remedy."""


class MemberList(NamedTuple):
    """A list of tables: name, identifying key, and advice for errors."""

    name: str
    ident: str
    command: str
    added_with: str
    key_taken: str
    key_revoked: str


LEAVES: Final = MemberList(
    *("leaf", "domain", "petiole fleet", " …"),
    *("each leaf needs its own: enrol it", "make another one: petiole enrol --new"),
)
USERS: Final = MemberList("user", "name", "petiole user", "", "make another one", "make another one")


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A leaf as `petiole enrol` printed it."""

    domain: str
    key: str
    classes: tuple[str, ...] = ()
    tenant: str = ""
    users: Mapping[str, str] = field(default_factory=dict)
    receipt: tuple[str, ...] = ()

    def row(self) -> Row:
        more = {"classes": list(self.classes), "tenant": self.tenant, "users": dict(self.users)}
        more["receipt"] = list(self.receipt)
        return {"domain": self.domain, "key": self.key} | _given(more)


@dataclass(frozen=True, slots=True)
class NewUser:
    """A user to add: name, key, readable streams, account link."""

    name: str
    key: str
    reads: tuple[str, ...] = ()
    linked: bool = False

    def row(self) -> Row:
        return {"name": self.name, "key": self.key} | _given(
            {"reads": list(self.reads), "linked": self.linked}
        )


def _given(row: Row) -> Row:
    return {key: value for key, value in row.items() if value}


def enrolled(text: str) -> Enrolled:
    """Parse the table of `petiole enrol`. Raises `MemberError`."""
    try:
        (row,) = tomllib.loads(text)["leaf"]
        return Enrolled(
            str(row["domain"]),
            str(row["key"]),
            tuple(map(str, row.get("classes", ()))),
            users={str(name): str(key) for name, key in row.get("users", {}).items()},
            receipt=tuple(map(str, row.get("receipt", ()))),
        )
    except (tomllib.TOMLDecodeError, KeyError, ValueError, TypeError, AttributeError):
        raise MemberError("this is not the one [[leaf]] table that `petiole enrol` prints") from None


def added(text: str, member: Enrolled | NewUser) -> str:
    """Add a leaf or user, or update one with this key; a hub's new leaf goes into the cell with the fewest
    leaves, or begins a cell where each has `registrar.cell_leaves`. Raises `MemberError`."""
    members, given = LEAVES if isinstance(member, Enrolled) else USERS, member.row()
    ident = given[members.ident]
    most = _cell_leaves(text) if members is LEAVES and not given.get("tenant") else None

    def change(rows: list[Row]) -> None:
        row = _row(rows, members, ident)
        key = None if row is None else row.get("key")
        replace = f"by: {members.command} replace {ident} …"
        if key and key != member.key:
            raise MemberError(f"{ident} is there already with another key; let it in with this one {replace}")
        if row is not None and not key and row.get("revoked") and not row.get("forgotten"):
            raise MemberError(f"{ident} was revoked; let it in again {replace}")
        for new in (member.key, *given.get("users", {}).values()):
            _unused(rows, members, new, row)
        cell = (
            0 if row is not None or most is None else _free_cell(Counter(map(_cell, _in_cells(rows))), most)
        )
        if row is None:
            rows.append(row := {})
        row.pop("forgotten", None)
        if "receipt" in given:  # what an earlier key signed stays checkable
            given["receipt"] += [key for key in row.get("receipt", ()) if key[:56] not in given["receipt"]]
        row |= given | _given({"cell": cell})

    return edited(text, members, change)


def split(text: str, staying: Container[str], aggregates: int) -> tuple[str, list[str], list[str]]:
    """The configuration of a hub in which no cell has more leaves than `registrar.cell_leaves`, and the first
    keeps its `aggregates`, which may hold readings; which leaves move, and which stay that should: they are
    `staying`, or take or give streams. Raises `MemberError`."""
    most, moved, stayed = _cell_leaves(text), list[str](), list[str]()
    if most is None:
        raise MemberError("only the leaves of a hub whose server its agent runs are in cells")

    def change(rows: list[Row]) -> None:
        leaves = _in_cells(rows)
        sizes = Counter(map(_cell, leaves))
        for row in reversed(leaves):
            if sizes[_cell(row)] <= most:
                continue
            if row["domain"] in staying or row.get("takes") or row.get("gives"):
                stayed.append(row["domain"])
                continue
            sizes[_cell(row)] -= 1
            row["cell"] = cell = _free_cell(sizes, most)
            sizes[cell] += 1
            moved.append(row["domain"])

    new = edited(text, LEAVES, change)
    if moved:
        document = tomlkit.parse(new)
        registrar: Any = document.setdefault("registrar", tomlkit.table())
        registrar["aggregates"] = max(aggregates, registrar.get("aggregates", 1))
        new = tomlkit.dumps(document)
    return new, sorted(moved), sorted(stayed)


def _in_cells(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if not row.get("tenant") and not row.get("forgotten")]


def _cell(row: Row) -> int:
    return int(row.get("cell", 0))


def _free_cell(sizes: Mapping[int, int], most: int) -> int:
    """The cell with the fewest leaves, or a further one where each has `most`."""
    fewest = min({0: 0, **sizes}.items(), key=lambda item: (item[1], item[0]))
    return fewest[0] if fewest[1] < most else max(sizes) + 1


def _cell_leaves(text: str) -> int | None:
    """`registrar.cell_leaves` of a hub whose server its agent runs; None in any other file."""
    table = _read(text, LEAVES.name)
    nats, registrar = table.get("nats", {}), table.get("registrar", {})
    if table.get("role") != "hub" or not isinstance(nats, dict) or not isinstance(registrar, dict):
        return None
    most = registrar.get("cell_leaves", RegistrarConfig().cell_leaves)
    return most if nats.get("server") != "external" and isinstance(most, int) and most > 0 else None


def replaced(text: str, members: MemberList, ident: str, key: str) -> str:
    """Replace a key and revoke the old one, with a leaf's user keys. Raises `MemberError`."""

    def change(rows: list[Row]) -> None:
        row = _known(rows, members, ident)
        _unused(rows, members, key, row)
        if row.get("key") != key:
            _revoke_keys(row)
            row["key"] = key

    return edited(text, members, change)


def revoked(text: str, members: MemberList, ident: str) -> str:
    """Revoke a leaf's or user's access. Raises `MemberError`."""

    def change(rows: list[Row]) -> None:
        row = _known(rows, members, ident)
        if not row.get("key") and not row.get("revoked"):
            raise MemberError(f"{ident} has no key that could be revoked; it is not let in")
        _revoke_keys(row)

    return edited(text, members, change)


def forgotten(text: str, members: MemberList, ident: str) -> str:
    """Remove a leaf or user but keep its keys as revoked. Missing ones change nothing.
    Raises `MemberError`.
    """

    def change(rows: list[Row]) -> None:
        if (row := _row(rows, members, ident)) is None:
            return
        _revoke_keys(row)
        if keys := row.get("revoked"):
            kept = _given({name: row.get(name) for name in ("cell", "receipt")})
            row.clear()
            row |= {members.ident: ident, "revoked": keys, "forgotten": True} | kept
        else:
            rows.remove(row)

    return edited(text, members, change)


def _revoke_keys(row: Row) -> None:
    """Move a table's keys, with users' link keys, to revoked ones."""
    if old := [key for key in (row.pop("key", ""), *row.pop("users", {}).values()) if key]:
        row["revoked"] = [*row.get("revoked", []), *old]


def _row(rows: Sequence[Row], members: MemberList, ident: str) -> Row | None:
    return next((row for row in rows if row.get(members.ident) == ident), None)


def _known(rows: Sequence[Row], members: MemberList, ident: str) -> Row:
    row = _row(rows, members, ident)
    if row is None or row.get("forgotten"):
        add = f"{members.command} add {ident}{members.added_with}"
        raise MemberError(f"there is no {members.name} {ident!r}; it is let in by: {add}")
    return row


def _unused(rows: Sequence[Row], members: MemberList, key: str, own: Row | None) -> None:
    """Raise `MemberError` for a revoked key or one of another table than `own`."""
    for row in rows:
        whose = row.get(members.ident)
        if row.get("key") == key and row is not own:
            raise MemberError(f"this is the key of {whose}; {members.key_taken}")
        if key in row.get("revoked", []):
            raise MemberError(f"this key was revoked of {whose}; {members.key_revoked}")


def edited(text: str, members: MemberList, change: Callable[[list[Row]], None]) -> str:
    """Apply a change to plain values and to the document, and compare. Raises `MemberError`."""
    name = members.name
    expected = _read(text, name)
    before = [dict(row) for row in expected.get(name, [])]
    rows = [dict(row) for row in before]
    change(rows)
    expected[name] = rows
    try:
        document = tomlkit.parse(text)
        _apply(document, members, before, rows)
        edited_text = tomlkit.dumps(document)
        right = {**tomllib.loads(edited_text)}
    except (TOMLKitError, tomllib.TOMLDecodeError):
        right, edited_text = {}, ""
    if right.get(name, []) != rows or {**right, name: rows} != expected:
        raise MemberError(
            f"the [[{name}]] tables of this file are written so that only a person can change them"
        )
    return edited_text


def _read(text: str, name: str) -> dict[str, Any]:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MemberError(f"this file is not TOML: {error}") from None
    rows = table.get(name, [])
    tables = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    if not tables or not all(isinstance(row.get("revoked", []), list) for row in rows):
        raise MemberError(f"{name} in this file is not a list of tables, each with a list of revoked keys")
    return table


def _apply(document: TOMLDocument, members: MemberList, before: Sequence[Row], rows: Sequence[Row]) -> None:
    name, ident = members.name, members.ident
    names = [row.get(ident) for row in rows]
    tables: Any = document.get(name)
    if tables is None:
        document.append(name, tomlkit.aot())
        tables = document[name]
    for number in reversed(range(len(before))):
        if before[number].get(ident) not in names:
            del tables[number]
    for number, row in enumerate(rows):
        if number >= len(tables):
            _append(tables)
        table = tables[number]
        for key in [key for key in table if key not in row]:
            del table[key]
        for key, value in row.items():
            if key not in table or table[key] != value:
                table[key] = value
        if number >= len(before) and number and not table.trivia.indent:
            table.add(tomlkit.nl())
    if not len(tables):
        del document[name]


def _append(tables: Any) -> None:
    """Add a table with blank lines around it."""
    if not isinstance(tables, AoT):
        tables.append(tomlkit.inline_table())
        return
    table = tomlkit.table()
    follows_blank = len(tables) > 0 and tables[-1].as_string().endswith("\n\n")
    if not follows_blank:
        table.trivia.indent = "\n"
    tables.append(table)
