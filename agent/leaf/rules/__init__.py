"""Applies `[[rule]]`s between inputs and core. Pure.

Input, metric and device select rules, so one series has one class. Rules apply in order: later classes, tags,
deadbands, samples and aggregates replace earlier ones; `drop` ends.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from agent.config import Rule
from agent.leaf.rules.deadbands import Band
from agent.leaf.rules.windows import WindowPlan

Match = Callable[[str], bool]

MAX_KNOWN: Final = 4096
"""Cached verdicts; beyond, all are dropped."""

LATE_SECONDS: Final = 10.0
"""Default wait of a window."""


class RuleResult(NamedTuple):
    """A reading's result: class (None: input's), default tags, deadband, aggregation or dropping rule."""

    cls: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    band: Band | None = None
    plan: WindowPlan | None = None
    dropped_by: str | None = None

    @property
    def keeps_line(self) -> bool:
        """Whether the line is sent unchanged whatever its value."""
        return not self.tags and self.band is None and self.plan is None and self.dropped_by is None


class _Compiled(NamedTuple):
    rule: Rule
    name: str
    metric: Match | None
    device: Match | None


def rule_name(rule: Rule, number: int) -> str:
    """Return a rule's name in metrics; `number` counts from 1."""
    return rule.name or f"rule-{number}"


def patterns_of(patterns: str | list[str]) -> list[str]:
    """Return the patterns of a key with one or several."""
    return [patterns] if isinstance(patterns, str) else patterns


class Rulebook:
    """The rules of one input."""

    def __init__(self, rules: Sequence[Rule], input_name: str) -> None:
        self._rules = [
            _Compiled(
                rule,
                rule_name(rule, number),
                compile_patterns(patterns_of(rule.metric)),
                compile_patterns(patterns_of(rule.device)),
            )
            for number, rule in enumerate(rules, 1)
            if (match := compile_patterns(patterns_of(rule.input))) is None or match(input_name)
        ]
        self._known: dict[tuple[str, str], RuleResult] = {}

    @property
    def empty(self) -> bool:
        """Whether no rule applies."""
        return not self._rules

    @property
    def aggregates(self) -> bool:
        """Whether a rule aggregates."""
        return any(compiled.rule.aggregate for compiled in self._rules)

    @property
    def needs_device(self) -> bool:
        """Whether verdicts depend on the device."""
        return any(compiled.device is not None for compiled in self._rules)

    def verdict(self, name: tuple[str, str]) -> RuleResult:
        """Return the result for metric and device ("" if not needed)."""
        result = self._known.get(name)
        if result is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            result = self._known[name] = self._decide(*name)
        return result

    def _decide(self, metric: str, device: str) -> RuleResult:
        cls, band, plan, tags = None, None, None, dict[str, str]()
        for compiled in self._rules:
            if (compiled.metric is not None and not compiled.metric(metric)) or (
                compiled.device is not None and not compiled.device(device)
            ):
                continue
            rule = compiled.rule
            if rule.drop:
                return RuleResult(dropped_by=compiled.name)
            cls = rule.class_ or cls
            tags.update(rule.tags)
            if rule.deadband is not None:
                band, plan = Band(compiled.name, rule.deadband, rule.after), None
            elif rule.sample is not None:
                band, plan = Band(compiled.name, 0.0, None, rule.sample), None
            elif rule.window is not None:
                functions, late = tuple(rule.aggregate), float(rule.late or LATE_SECONDS)
                band, plan = None, WindowPlan(compiled.name, functions, int(rule.window), late)
        return RuleResult(cls, tuple(tags.items()), band, plan)


def compile_patterns(patterns: Sequence[str]) -> Match | None:
    """Return a matcher of patterns without those excluded by `!`; None if all names match. Only `!` patterns
    admit all others.
    """
    included = [pattern for pattern in patterns if not pattern.startswith("!")]
    excluded = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    if not excluded and (not included or "*" in included):
        return None
    takes, leaves = _any(included), _any(excluded)
    return lambda name: (takes is None or takes(name)) and not (leaves is not None and leaves(name))


def _any(patterns: Sequence[str]) -> Match | None:
    if not patterns:
        return None
    matcher = re.compile("|".join(map(fnmatch.translate, patterns)))
    return lambda name: matcher.match(name) is not None
