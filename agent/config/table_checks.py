"""Checks [[mirror]], [[source]], [[rule]], [[leaf]] and [[user]] across keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from agent import contract
from agent.config.keys import is_public_key, is_seed
from agent.config.schema import Config, LeafMember, MirrorConfig, OriginConfig, Rule, User, aggregates
from agent.config.values import (
    Problem,
    contract_problem,
    duplicate,
    numbered,
    reserved_domain,
    unknown_class,
)

_STREAM: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_SUBJECT: Final = re.compile(r"[^\s.]+(\.[^\s.]+)*\Z")
_PREFIX: Final = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*\Z")
_OURS: Final = ("TEL_", "TELEMETRY_", "KV_", "OBJ_", "MQTT_")
_API_REMEDY: Final = 'write the prefix under which it was imported, such as "JS.acc@hub.API"'
MAX_RULES: Final = 100
MAX_TAGS: Final = 16
_RULE_ACTIONS: Final = "class, drop, tags, deadband, sample or aggregate"
_DAY: Final = 86400.0
_COPY: Final = "copy the line that begins with U from {}"
_OF_LEAVES: Final = ("`petiole enrol`", "make a key for each leaf, and never use it again")
_OF_USERS: Final = ("what made the key", "make a key for each user and link")


def check_links(config: Config) -> Iterator[Problem]:
    """Yield problems of declared links, and of leaves' `takes` and `gives`."""
    seen: set[str] = set()
    for number, mirror in numbered(config.mirror):
        key = f"mirror[{number}]"
        yield from _name(f"{key}.name", mirror.name, seen)
        yield from _origin(config, key, mirror, mirror.name)
    for number, source in numbered(config.source):
        key = f"source[{number}]"
        yield from _name(f"{key}.name", source.name, seen)
        if not source.from_:
            yield Problem(f"{key}.from", "is empty", "write [[source.from]] with its stream")
        for place, origin in numbered(source.from_):
            yield from _origin(config, f"{key}.from[{place}]", origin, source.name)
    for number, leaf in numbered(config.leaf):
        for name in ("takes", "gives"):
            for stream in getattr(leaf, name):
                yield from _stream(f"leaf[{number}].{name}", stream)


def _name(key: str, name: str, seen: set[str]) -> Iterator[Problem]:
    yield from _stream(key, name)
    yield from duplicate(key, name, seen)
    if name == contract.COMMANDS or name.startswith(_OURS):
        yield Problem(key, f'"{name}" is the name of a stream of another kind', "choose another name")


def _stream(key: str, name: str) -> Iterator[Problem]:
    if not _STREAM.match(name):
        yield Problem(key, f'"{name:.60}" cannot be a stream', "use 1 to 64 letters, digits, '_' or '-'")


def _origin(config: Config, key: str, origin: OriginConfig, name: str) -> Iterator[Problem]:
    of = origin.of or (name if isinstance(origin, MirrorConfig) else "")
    if not of:
        yield Problem(f"{key}.of", "is missing", "name the stream to take messages from")
    else:
        yield from _stream(f"{key}.of", of)
    yield from _place(config, key, origin)
    if not origin.api and (origin.domain or contract.HUB_DOMAIN) == config.domain and of == name:
        yield Problem(f"{key}.of", f'"{of}" would take from itself', "name another stream, domain or api")
    if origin.start_sequence is not None and origin.start_time is not None:
        yield Problem(f"{key}.start_time", "is beside start_sequence", "remove one of them")
    if origin.start_time is not None and origin.start_time.tzinfo is None:
        yield Problem(f"{key}.start_time", "has no time zone", "write it as 2026-11-21T06:00:00Z")
    if origin.filter and origin.transforms:
        yield Problem(f"{key}.filter", "is beside transforms", "filter by the src of the transforms")
    subjects = [("filter", origin.filter)] if origin.filter else []
    for number, transform in numbered(origin.transforms):
        ends = (("src", transform.src), ("dest", transform.dest))
        subjects += [(f"transforms[{number}].{name}", subject) for name, subject in ends]
    for where, subject in subjects:
        if not _SUBJECT.match(subject):
            yield Problem(f"{key}.{where}", f'"{subject:.60}" is not a subject', 'write it as "plans.>"')


def _place(config: Config, key: str, origin: OriginConfig) -> Iterator[Problem]:
    if origin.domain and origin.api:
        yield Problem(f"{key}.api", "is beside domain", "remove one of them")
    elif origin.api == contract.api_prefix(config.domain):
        remedy = f'write domain = "{config.domain}"'
        yield Problem(f"{key}.api", "is this domain's own, and nothing would ever come", remedy)
    elif origin.api and (origin.api.startswith("$JS.API") or not _PREFIX.match(origin.api)):
        yield Problem(f"{key}.api", f'"{origin.api:.60}" is not a prefix of another JetStream', _API_REMEDY)
    elif origin.domain:
        remedy = "name the domain of the stream"
        yield from contract_problem(f"{key}.domain", contract.check_domain, origin.domain, remedy)
    elif not origin.api and config.role == "hub" and not origin.domain:
        yield Problem(f"{key}.domain", "is missing", 'name the domain of the stream, such as "edge-1"')
    if config.link.tenant and not origin.api and (origin.domain or contract.HUB_DOMAIN) != config.domain:
        yield Problem(
            f"{key}.domain",
            "is in another account than this leaf's tenant, and cannot be taken from",
            "export it on the hub and write the prefix as api",
        )
    if origin.deliver and not _PREFIX.match(origin.deliver):
        yield Problem(
            f"{key}.deliver", f'"{origin.deliver:.60}" is not a prefix', 'write it as "deliver.acc.hub.edge"'
        )


def check_rules(config: Config) -> Iterator[Problem]:
    rules = [(f"rule[{number}]", rule) for number, rule in numbered(config.rule)]
    if rules and config.role == "hub":
        yield Problem("rule", "the hub takes in no readings", "move it to a leaf")
    if len(rules) > MAX_RULES:
        yield Problem(
            "rule", f"{len(rules)} rules are more than {MAX_RULES}", "let one have several patterns"
        )
    names: set[str] = set()
    for key, rule in rules:
        yield from _rule_actions(key, rule)
        yield from _rule_tags(key, rule)
        for name in ("metric", "device", "input"):
            if not all(_rule_patterns(getattr(rule, name))):
                yield Problem(f"{key}.{name}", "holds an empty pattern", "write * for every name")
        if rule.name:
            yield from _rule_name(f"{key}.name", rule.name, names)
        if rule.class_ is not None:
            yield from unknown_class(key, rule.class_, config.class_names)


def check_maps(config: Config) -> Iterator[Problem]:
    """Yield problems of mappings."""
    names: set[str] = set()
    for number, map_ in numbered(config.map):
        from agent.mapping.compiled import MapError, compile_map  # not held in memory where there is none

        key = f"map[{number}]"
        yield from _rule_name(f"{key}.name", map_.name, names)
        try:
            compile_map(map_, config.domain)
        except MapError as error:
            yield from (Problem(f"{key}.{one.key}", one.stood, one.remedy) for one in error.problems)
    if config.map and config.role == "hub":
        yield Problem("map", "the hub takes in no readings", "move it to a leaf")


def _rule_actions(key: str, rule: Rule) -> Iterator[Problem]:
    thins = [rule.deadband is not None, rule.sample is not None, bool(rule.aggregate)]
    others = rule.class_ is not None or bool(rule.tags) or any(thins)
    if not rule.drop and not others:
        yield Problem(key, "does nothing", f"give one of {_RULE_ACTIONS}")
    if rule.drop and others:
        yield Problem(key, "drops what it would also change", "leave drop alone, or leave it out")
    if sum(thins) > 1:
        places = zip(("deadband", "sample", "aggregate"), thins, strict=True)
        first, second, *_ = (name for name, given in places if given)
        yield Problem(f"{key}.{second}", f"stands beside a {first}", "keep the one that is meant")
    if rule.after is not None and rule.deadband is None:
        yield Problem(f"{key}.after", "has no deadband to go with", "write deadband = 0 for every change")
    if rule.aggregate:
        yield from _rule_window(key, rule)
    elif rule.window is not None or rule.late is not None:
        name = "late" if rule.window is None else "window"
        yield Problem(
            f"{key}.{name}", "has no aggregate to go with", 'write aggregate = ["mean"], or leave it out'
        )


def _rule_window(key: str, rule: Rule) -> Iterator[Problem]:
    if len(set(rule.aggregate)) < len(rule.aggregate):
        yield Problem(f"{key}.aggregate", "names one twice", "name each once")
    if rule.window is None:
        yield Problem(f"{key}.window", "is missing", 'write window = "1m"')
    elif not 1 <= rule.window <= _DAY or rule.window % 1:
        yield Problem(f"{key}.window", "is not a whole number of seconds up to a day", 'write it as "1m"')
    if rule.late is not None and rule.late > _DAY:
        yield Problem(f"{key}.late", "is longer than a day", 'write it as "10s"')


def _rule_tags(key: str, rule: Rule) -> Iterator[Problem]:
    if len(rule.tags) > MAX_TAGS:
        yield Problem(f"{key}.tags", f"{len(rule.tags)} tags are more than {MAX_TAGS}", "leave some out")
    try:
        contract.parse_reading(contract.Reading("m", 0, tags=rule.tags).encode())
    except contract.ContractError as error:
        yield Problem(f"{key}.tags", str(error), "choose other tags")


def _rule_name(key: str, name: str, names: set[str]) -> Iterator[Problem]:
    try:
        contract.check_input(name)
    except contract.ContractError:
        yield Problem(
            key,
            f'"{name:.60}" is not 1 to 32 lower-case letters, digits, "_" or "-"',
            "choose another name",
        )
    yield from duplicate(key, name, names)


def _rule_patterns(given: str | list[str]) -> list[str]:
    return [pattern.removeprefix("!") for pattern in ([given] if isinstance(given, str) else given)]


def check_members(config: Config) -> Iterator[Problem]:
    """Yield problems of leaves except users."""
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
        yield from _forgotten(key, leaf)
        for text in leaf.receipt:
            yield from contract_problem(
                f"{key}.receipt", contract.parse_receipt_key, text, _COPY.format(_OF_LEAVES[0])
            )
        for place, text in _keys(key, leaf):
            yield from _key(place, text, keys, *_OF_LEAVES)
        if leaf.tenant:
            yield from contract_problem(
                f"{key}.tenant", contract.check_tenant, leaf.tenant, "choose another name"
            )
        if leaf.tenant or leaf.cell:
            yield from _apart(config, key, leaf)
        for cls in leaf.classes:
            yield from contract_problem(
                f"{key}.classes", contract.check_class, cls, "name a class of that leaf"
            )


def _apart(config: Config, key: str, leaf: LeafMember) -> Iterator[Problem]:
    whose = "a tenant's" if leaf.tenant else f"in cell {leaf.cell}"
    for name in ("takes", "gives"):
        if getattr(leaf, name):
            yield Problem(f"{key}.{name}", f"cannot cross accounts, and this leaf is {whose}", "remove it")
    if leaf.tenant and leaf.cell:
        yield Problem(f"{key}.cell", "stands beside a tenant, which has an account of its own", "remove it")
    elif leaf.cell and config.nats.server == "external":
        yield Problem(f"{key}.cell", "is for a hub whose server its agent runs", "remove it")


def check_users(config: Config) -> Iterator[Problem]:
    """Yield problems of users, and of leaves' users."""
    names: set[str] = set()
    keys = {text for _, leaf in numbered(config.leaf) for text in leaf.revoked}
    for number, user in numbered(config.user):
        yield from _user(config, f"user[{number}]", user, names, keys)
    names -= {user.name for _, user in numbered(config.user) if user.forgotten}
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
    yield from _forgotten(key, user)
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


def _forgotten(key: str, member: LeafMember | User) -> Iterator[Problem]:
    if member.forgotten and member.key:
        yield Problem(f"{key}.forgotten", "stands beside a key, which would let it in", "remove one of them")


def _keys(key: str, member: LeafMember | User) -> list[tuple[str, str]]:
    """Return public keys with places."""
    own = [(f"{key}.key", member.key)] if member.key else []
    return own + [(f"{key}.revoked", text) for text in member.revoked]


def _key(place: str, text: str, seen: set[str], source: str, unique: str) -> Iterator[Problem]:
    if not is_public_key(text):
        stood = "is a private key" if is_seed(text) else f'"{text:.60}" is not a public user key'
        yield Problem(place, stood, _COPY.format(source))
    elif text in seen:
        yield Problem(place, f'"{text}" is there twice', unique)
    seen.add(text)
