"""Edits the [[leaf]] and [[user]] tables of a file: adds one, gives it another key, revokes or forgets it.
The file is a topology or the configuration of an agent; both have tables of one form. Its comments and order
stay. Pure.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT

Row = dict[str, Any]
_IDS: Final = {"leaf": "domain", "user": "name"}
"""What tells the tables of a list apart."""


class MemberError(ValueError):
    """What is asked for cannot be done; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A leaf as `petiole enrol` printed it."""

    domain: str
    key: str
    classes: tuple[str, ...] = ()
    tenant: str = ""
    users: Mapping[str, str] = field(default_factory=dict)


def enrolled(text: str) -> Enrolled:
    """The table that `petiole enrol` prints, read back. Raises `MemberError`."""
    try:
        (row,) = tomllib.loads(text)["leaf"]
        return Enrolled(
            str(row["domain"]),
            str(row["key"]),
            tuple(map(str, row.get("classes", ()))),
            users={str(name): str(key) for name, key in row.get("users", {}).items()},
        )
    except (tomllib.TOMLDecodeError, KeyError, ValueError, TypeError, AttributeError):
        raise MemberError("this is not the one [[leaf]] table that `petiole enrol` prints") from None


def added(text: str, leaf: Enrolled) -> str:
    """The file with a leaf added. If the leaf is there with this key, its other values are updated. Raises
    `MemberError`."""

    def change(rows: list[Row]) -> None:
        row = _row(rows, "leaf", leaf.domain)
        key = None if row is None else row.get("key")
        if key and key != leaf.key:
            raise MemberError(
                f"{leaf.domain} is there already with another key; let it in with this one by: "
                f"petiole fleet replace {leaf.domain} …"
            )
        if row is not None and not key and row.get("revoked"):
            raise MemberError(
                f"{leaf.domain} was revoked; let it in again by: petiole fleet replace {leaf.domain} …"
            )
        _unused([other for other in rows if other is not row], leaf.key)
        if row is None:
            rows.append(row := {"domain": leaf.domain})
        row["key"] = leaf.key
        if leaf.classes:
            row["classes"] = list(leaf.classes)
        if leaf.tenant:
            row["tenant"] = leaf.tenant
        if leaf.users:
            row["users"] = dict(leaf.users)

    return edited(text, "leaf", change)


def replaced(text: str, domain: str, key: str) -> str:
    """The file with another key of a leaf, and the old one revoked. Raises `MemberError`."""
    return _replaced(text, "leaf", lambda rows: _known(rows, domain), _unused, key)


def revoked(text: str, domain: str) -> str:
    """The file with a leaf that is not let in any more. Raises `MemberError`."""
    return _revoked(text, "leaf", lambda rows: _known(rows, domain), domain)


def forgotten(text: str, domain: str) -> str:
    """The file without a leaf; the same text where there is none. Raises `MemberError`."""

    def change(rows: list[Row]) -> None:
        row = _row(rows, "leaf", domain)
        if row is not None:
            rows.remove(row)

    return edited(text, "leaf", change)


def _replaced(
    text: str,
    table: str,
    known: Callable[[Sequence[Row]], Row],
    unused: Callable[[Sequence[Row], str], None],
    key: str,
) -> str:
    def change(rows: list[Row]) -> None:
        row = known(rows)
        unused(rows, key)
        revoke_key(row)
        row["key"] = key

    return edited(text, table, change)


def _revoked(text: str, table: str, known: Callable[[Sequence[Row]], Row], ident: str) -> str:
    def change(rows: list[Row]) -> None:
        row = known(rows)
        if not row.get("key"):
            raise MemberError(f"{ident} has no key that could be revoked; it is not let in")
        revoke_key(row)

    return edited(text, table, change)


def revoke_key(row: Row) -> None:
    """Move the key of a table to its revoked ones."""
    if old := row.pop("key", ""):
        row["revoked"] = [*row.get("revoked", []), old]


def _row(rows: Sequence[Row], table: str, name: str) -> Row | None:
    return next((row for row in rows if row.get(_IDS[table]) == name), None)


def _known(rows: Sequence[Row], domain: str) -> Row:
    row = _row(rows, "leaf", domain)
    if row is None:
        raise MemberError(f"there is no leaf {domain!r}; it is let in by: petiole fleet add {domain} …")
    return row


def _unused(rows: Sequence[Row], key: str) -> None:
    for row in rows:
        if row.get("key") == key:
            raise MemberError(f"this is the key of {row.get('domain')}; each leaf needs its own: enrol it")
        if key in row.get("revoked", []):
            raise MemberError(
                f"this key was revoked of {row.get('domain')}; make another one: petiole enrol --new"
            )


def edited(text: str, name: str, change: Callable[[list[Row]], None]) -> str:
    """The text after a change to the tables of the list `name`, made twice: to plain values, which give the
    expected result, and to the document, which keeps comments and order. Raises `MemberError`."""
    expected = _read(text, name)
    before = [dict(row) for row in expected.get(name, [])]
    rows = [dict(row) for row in before]
    change(rows)
    expected[name] = rows
    try:
        document = tomlkit.parse(text)
        _apply(document, name, before, rows)
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


def _apply(document: TOMLDocument, name: str, before: Sequence[Row], rows: Sequence[Row]) -> None:
    names = [row.get(_IDS[name]) for row in rows]
    tables: Any = document.get(name)
    if tables is None:
        document.append(name, tomlkit.aot())
        tables = document[name]
    for number in reversed(range(len(before))):
        if before[number].get(_IDS[name]) not in names:
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
    """Add a table to a list, with a blank line before it, and after it where one stood there."""
    if not isinstance(tables, AoT):
        tables.append(tomlkit.inline_table())
        return
    table = tomlkit.table()
    follows_blank = len(tables) > 0 and tables[-1].as_string().endswith("\n\n")
    if not follows_blank:
        table.trivia.indent = "\n"
    tables.append(table)


@dataclass(frozen=True, slots=True)
class NewUser:
    """A user to let in: its name and public key, what it may read, and whether its account is linked."""

    name: str
    key: str
    reads: tuple[str, ...] = ()
    linked: bool = False


def user_added(text: str, user: NewUser) -> str:
    """The file with a user; the same text where it is there with this key. Raises `MemberError`."""

    def change(rows: list[Row]) -> None:
        row = _row(rows, "user", user.name)
        if row is None:
            rows.append(row := {"name": user.name})
        elif row.get("key") not in (None, user.key) or row.get("revoked"):
            raise MemberError(
                f"{user.name} is there already with another key; let it in with this one by: "
                f"petiole user replace {user.name} …"
            )
        _unused_user_key(rows, user.key, user.name)
        row["key"] = user.key
        row |= {"reads": list(user.reads)} if user.reads else {}
        row |= {"linked": True} if user.linked else {}

    return edited(text, "user", change)


def user_replaced(text: str, name: str, key: str) -> str:
    """The file with another key of a user, and the old one revoked. Raises `MemberError`."""
    return _replaced(text, "user", lambda rows: _known_user(rows, name), _unused_user_key, key)


def user_revoked(text: str, name: str) -> str:
    """The file with a user that is not let in any more; its streams stay. Raises `MemberError`."""
    return _revoked(text, "user", lambda rows: _known_user(rows, name), name)


def user_forgotten(text: str, name: str) -> str:
    """The file without a user. Raises `MemberError`."""

    def change(rows: list[Row]) -> None:
        rows.remove(_known_user(rows, name))

    return edited(text, "user", change)


def _known_user(rows: Sequence[Row], name: str) -> Row:
    row = _row(rows, "user", name)
    if row is None:
        raise MemberError(f"there is no user {name!r}; it is let in by: petiole user add {name}")
    return row


def _unused_user_key(rows: Sequence[Row], key: str, but: str = "") -> None:
    for row in rows:
        if row.get("key") == key and row.get("name") != but:
            raise MemberError(f"this is the key of {row.get('name')}; make another one")
        if key in row.get("revoked", []):
            raise MemberError(f"this key was revoked of {row.get('name')}; make another one")
