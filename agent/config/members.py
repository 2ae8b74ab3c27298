"""The leaves of a hub ([[leaf]]) and the users of either ([[user]]): the aggregates that they need, what each
may read, and the checks of whom the server lets in.

The server's permissions name each aggregate, so their number follows from the configuration alone, not from
what the hub holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from agent import contract
from agent.config.keys import is_public_key, is_seed
from agent.config.schema import Config, LeafMember, User
from agent.config.values import Problem, contract_problem, duplicate, numbered, reserved_domain
from agent.contract import aggregate, user_consumer


def aggregates(config: Config) -> tuple[str, ...]:
    """The names of the hub's aggregates: enough for every class of every configured leaf, and as many as
    `[registrar] aggregates` asks for."""
    sources = sum(len(leaf.classes) for leaf in config.leaf if leaf is not None)
    needed = -(-sources // config.registrar.max_sources)
    return tuple(aggregate(number) for number in range(max(1, needed, config.registrar.aggregates)))


def readers(config: Config, what: str) -> list[str]:
    """The consumers of the users that may read this class of a leaf, or this aggregate of the hub."""
    return [user_consumer(user.name) for user in config.user if user.key and what in user.reads]


def members_digest(leaves: Iterable[LeafMember]) -> str:
    """A digest of the [[leaf]] tables, by which one sees whether a running agent has taken them in."""
    return _digest(sorted(leaves, key=attrgetter("domain")))


def users_digest(users: Iterable[User]) -> str:
    """The same of the [[user]] tables."""
    return _digest(sorted(users, key=attrgetter("name")))


def _digest(tables: Sequence[msgspec.Struct]) -> str:
    return hashlib.sha256(msgspec.json.encode(tables, enc_hook=int)).hexdigest()[:16]


_COPY: Final = "copy the line that begins with U from {}"
_OF_LEAVES: Final = ("`petiole enrol`", "make a key for each leaf, and never use it again")
_OF_USERS: Final = ("what made the key", "make a key for each user and link")


def check_members(config: Config) -> Iterator[Problem]:
    """All problems of the leaves, but for their users."""
    domains: set[str] = set()
    keys: set[str] = set()
    for number, leaf in numbered(config.leaf):
        key = f"leaf[{number}]"
        yield from contract_problem(
            f"{key}.domain", contract.check_domain, leaf.domain, "name the leaf's domain"
        )
        yield from duplicate(f"{key}.domain", leaf.domain, domains)
        if leaf.domain in contract.RESERVED_DOMAINS:
            yield reserved_domain(f"{key}.domain", leaf.domain, "name the leaf's domain")
        if not leaf.key and not leaf.revoked:
            yield Problem(f"{key}.key", "is missing", _COPY.format(_OF_LEAVES[0]))
        for place, text in _keys(key, leaf):
            yield from _key(place, text, keys, *_OF_LEAVES)
        if leaf.tenant:
            yield from _tenant(key, leaf)
        for cls in leaf.classes:
            yield from contract_problem(
                f"{key}.classes", contract.check_class, cls, "name a class of that leaf"
            )


def _tenant(key: str, leaf: LeafMember) -> Iterator[Problem]:
    yield from contract_problem(f"{key}.tenant", contract.check_tenant, leaf.tenant, "choose another name")
    for name in ("takes", "gives"):
        if getattr(leaf, name):
            yield Problem(f"{key}.{name}", "cannot cross accounts, and this leaf is a tenant's", "remove it")


def check_users(config: Config) -> Iterator[Problem]:
    """All problems of the users, and of the users that leaves link."""
    names: set[str] = set()
    keys: set[str] = set()
    for number, user in numbered(config.user):
        yield from _user(config, f"user[{number}]", user, names, keys)
    for number, leaf in numbered(config.leaf):
        for name, key in leaf.users.items():
            place = f"leaf[{number}].users.{name}"
            if name not in names:
                yield Problem(
                    place, f'there is no user "{name}" here', f'write [[user]] with name = "{name}"'
                )
            yield from _key(place, key, keys, *_OF_USERS)


def _user(config: Config, key: str, user: User, names: set[str], keys: set[str]) -> Iterator[Problem]:
    yield from contract_problem(f"{key}.name", contract.check_user, user.name, "choose another name")
    yield from duplicate(f"{key}.name", user.name, names)
    if not user.key and not user.revoked:
        yield Problem(f"{key}.key", "is missing", "make a key with: petiole user add " + user.name)
    for place, text in _keys(key, user):
        yield from _key(place, text, keys, *_OF_USERS)
    readable = aggregates(config) if config.role == "hub" else config.class_names
    for name in user.reads:
        if name not in readable:
            kind = "aggregate" if config.role == "hub" else "class"
            remedy = f"take one of: {', '.join(readable)}"
            yield Problem(f"{key}.reads", f'there is no {kind} "{name}"', remedy)
    if user.linked and config.role == "hub":
        yield Problem(f"{key}.linked", "the hub dials no other server", "set it on the leaf")


def _keys(key: str, member: LeafMember | User) -> list[tuple[str, str]]:
    """The public keys of a leaf or user, each with its place in the file."""
    own = [(f"{key}.key", member.key)] if member.key else []
    return own + [(f"{key}.revoked", text) for text in member.revoked]


def _key(place: str, text: str, seen: set[str], source: str, unique: str) -> Iterator[Problem]:
    if not is_public_key(text):
        stood = "is a private key" if is_seed(text) else f'"{text:.60}" is not a public user key'
        yield Problem(place, stood, _COPY.format(source))
    elif text in seen:
        yield Problem(place, f'"{text}" is there twice', unique)
    seen.add(text)
