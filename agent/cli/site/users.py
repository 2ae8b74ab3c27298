"""The life of a user in the configuration of an agent: added, given another key, revoked, forgotten. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent.cli.site.edit import MemberError, Row, edited, revoke_key


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
        row = _found(rows, user.name)
        if row is None:
            rows.append(row := {"name": user.name})
        elif row.get("key") not in (None, user.key) or row.get("revoked"):
            raise MemberError(
                f"{user.name} is there already with another key; let it in with this one by: "
                f"petiole user replace {user.name} …"
            )
        _unused(rows, user.key, user.name)
        row["key"] = user.key
        row |= {"reads": list(user.reads)} if user.reads else {}
        row |= {"linked": True} if user.linked else {}

    return edited(text, "user", change)


def user_replaced(text: str, name: str, key: str) -> str:
    """The file with another key of a user, and the old one revoked. Raises `MemberError`."""

    def change(rows: list[Row]) -> None:
        row = _known(rows, name)
        _unused(rows, key)
        revoke_key(row)
        row["key"] = key

    return edited(text, "user", change)


def user_revoked(text: str, name: str) -> str:
    """The file with a user that is not let in any more; its streams stay. Raises `MemberError`."""

    def change(rows: list[Row]) -> None:
        row = _known(rows, name)
        if not row.get("key"):
            raise MemberError(f"{name} has no key that could be revoked; it is not let in")
        revoke_key(row)

    return edited(text, "user", change)


def user_forgotten(text: str, name: str) -> str:
    """The file without a user. Raises `MemberError`."""

    def change(rows: list[Row]) -> None:
        rows.remove(_known(rows, name))

    return edited(text, "user", change)


def _found(rows: Sequence[Row], name: str) -> Row | None:
    return next((row for row in rows if row.get("name") == name), None)


def _known(rows: Sequence[Row], name: str) -> Row:
    row = _found(rows, name)
    if row is None:
        raise MemberError(f"there is no user {name!r}; it is let in by: petiole user add {name}")
    return row


def _unused(rows: Sequence[Row], key: str, but: str = "") -> None:
    for row in rows:
        if row.get("key") == key and row.get("name") != but:
            raise MemberError(f"this is the key of {row.get('name')}; make another one")
        if key in row.get("revoked", []):
            raise MemberError(f"this key was revoked of {row.get('name')}; make another one")
