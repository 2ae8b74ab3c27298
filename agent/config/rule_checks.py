"""Checks of [[rule]] beyond the types of its keys."""

from __future__ import annotations

from collections.abc import Iterator

from agent import contract
from agent.config.problem import Problem, duplicate
from agent.config.schema import Config, Rule

MAX_RULES = 100
MAX_TAGS = 16
_ACTIONS = "class, drop, tags or deadband"


def check_rules(config: Config) -> Iterator[Problem]:
    """All problems of the rules."""
    rules = [(f"rule[{number}]", rule) for number, rule in enumerate(config.rule, 1) if rule is not None]
    if rules and config.role == "hub":
        yield Problem("rule", "the hub takes in no readings", "move it to a leaf")
    if len(rules) > MAX_RULES:
        yield Problem(
            "rule", f"{len(rules)} rules are more than {MAX_RULES}", "let one have several patterns"
        )
    classes = {cls.name for cls in config.class_ if cls is not None}
    names: set[str] = set()
    for key, rule in rules:
        yield from _actions(key, rule)
        yield from _tags(key, rule)
        for name in ("metric", "device", "input"):
            if not all(_patterns(getattr(rule, name))):
                yield Problem(f"{key}.{name}", "holds an empty pattern", "write * for every name")
        if rule.name:
            yield from _name(f"{key}.name", rule.name, names)
        if rule.class_ is not None and rule.class_ not in classes:
            yield Problem(
                f"{key}.class",
                f'there is no class "{rule.class_}"',
                f"declare it with [[class]], or take one of: {', '.join(sorted(classes))}",
            )


def _actions(key: str, rule: Rule) -> Iterator[Problem]:
    others = rule.class_ is not None or bool(rule.tags) or rule.deadband is not None
    if not rule.drop and not others:
        yield Problem(key, "does nothing", f"give one of {_ACTIONS}")
    if rule.drop and others:
        yield Problem(key, "drops what it would also change", "leave drop alone, or leave it out")
    if rule.after is not None and rule.deadband is None:
        yield Problem(f"{key}.after", "has no deadband to go with", "write deadband = 0 for every change")


def _tags(key: str, rule: Rule) -> Iterator[Problem]:
    if len(rule.tags) > MAX_TAGS:
        yield Problem(f"{key}.tags", f"{len(rule.tags)} tags are more than {MAX_TAGS}", "leave some out")
    try:
        contract.parse_reading(contract.Reading("m", 0, tags=rule.tags).encode())
    except contract.ContractError as error:
        yield Problem(f"{key}.tags", str(error), "choose other tags")


def _name(key: str, name: str, names: set[str]) -> Iterator[Problem]:
    try:
        contract.check_input(name)
    except contract.ContractError:
        yield Problem(
            key,
            f'"{name:.60}" is not 1 to 32 lower-case letters, digits, "_" or "-"',
            "choose another name",
        )
    yield from duplicate(key, name, names)


def _patterns(given: str | list[str]) -> list[str]:
    return [pattern.removeprefix("!") for pattern in ([given] if isinstance(given, str) else given)]
