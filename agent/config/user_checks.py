"""What no single key of [[user]], and of the users of a [[leaf]], shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agent import contract
from agent.config.aggregates import aggregates
from agent.config.keys import is_public_key, is_seed
from agent.config.problem import Problem
from agent.config.schema import Config, User

_GIVE: Final = "copy the line that begins with U from what made the key"


def check_users(config: Config) -> Iterator[Problem]:
    """All problems of the users."""
    names: set[str] = set()
    keys: set[str] = set()
    for number, user in enumerate(config.user, 1):
        if user is not None:
            yield from _user(config, f"user[{number}]", user, names, keys)
    for number, leaf in enumerate(config.leaf, 1):
        for name, key in leaf.users.items() if leaf is not None else ():
            place = f"leaf[{number}].users.{name}"
            if name not in names:
                yield Problem(
                    place, f'there is no user "{name}" here', f'write [[user]] with name = "{name}"'
                )
            yield from _key(place, key, keys)


def _user(config: Config, key: str, user: User, names: set[str], keys: set[str]) -> Iterator[Problem]:
    try:
        contract.check_user(user.name)
    except contract.ContractError as error:
        yield Problem(f"{key}.name", str(error), "choose another name")
    if user.name in names:
        yield Problem(f"{key}.name", f'"{user.name}" is there twice', "let each have a name of its own")
    names.add(user.name)
    if not user.key and not user.revoked:
        yield Problem(f"{key}.key", "is missing", "make a key with: petiole user add " + user.name)
    for place, text in [("key", user.key)] * bool(user.key) + [("revoked", one) for one in user.revoked]:
        yield from _key(f"{key}.{place}", text, keys)
    known = aggregates(config) if config.role == "hub" else [one.name for one in config.class_ if one]
    for name in user.reads:
        if name not in known:
            what = "aggregate" if config.role == "hub" else "class"
            yield Problem(f"{key}.reads", f'there is no {what} "{name}"', f"take one of: {', '.join(known)}")
    if user.linked and config.role == "hub":
        yield Problem(f"{key}.linked", "the hub dials no other server", "set it on the leaf")


def _key(place: str, text: str, seen: set[str]) -> Iterator[Problem]:
    if not is_public_key(text):
        stood = "is a private key" if is_seed(text) else f'"{text:.60}" is not a public user key'
        yield Problem(place, stood, _GIVE)
    elif text in seen:
        yield Problem(place, f'"{text}" is there twice', "make a key for each user and link")
    seen.add(text)
