"""Rules at the edge: between the inputs and the core, where the configuration has `[[rule]]`.

Which readings a rule is for is decided by input, metric and device alone, all of which rules leave as they
are; so readings of one series always share their class. The rules of a reading apply in the order in which
they stand: a later class or tag replaces an earlier one, and so does a later deadband, sample or aggregate;
`drop` ends it.
This file says what they make of one reading, by its metric and device. Pure.
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
"""Names whose verdict is remembered; beyond, all are forgotten."""

LATE_SECONDS: Final = 10.0
"""How long a window waits where its rule does not say it."""


class RuleResult(NamedTuple):
    """What becomes of a reading: its class (None: that of its input), tags that it is given where it has none
    of that name, its deadband, what it is aggregated to, or the rule that drops it."""

    cls: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    band: Band | None = None
    plan: WindowPlan | None = None
    dropped_by: str | None = None

    @property
    def keeps_line(self) -> bool:
        """Whether it is sent as it came, whatever its value."""
        return not self.tags and self.band is None and self.plan is None and self.dropped_by is None


class _Compiled(NamedTuple):
    rule: Rule
    name: str
    metric: Match | None
    device: Match | None


def rule_name(rule: Rule, number: int) -> str:
    """What a rule is called in metrics; `number` counts from 1."""
    return rule.name or f"rule-{number}"


def patterns_of(patterns: str | list[str]) -> list[str]:
    """The patterns of a key that takes one or several."""
    return [patterns] if isinstance(patterns, str) else patterns


class Rulebook:
    """The rules for one input."""

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
        """Whether no rule is for this input."""
        return not self._rules

    @property
    def aggregates(self) -> bool:
        """Whether one of them aggregates."""
        return any(compiled.rule.aggregate for compiled in self._rules)

    @property
    def needs_device(self) -> bool:
        """Whether a verdict depends on the device."""
        return any(compiled.device is not None for compiled in self._rules)

    def verdict(self, name: tuple[str, str]) -> RuleResult:
        """What becomes of readings with this metric and device (an empty one where it is not needed)."""
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
    """Whether a name matches one of the patterns and none of those that begin with `!`; None when every name
    does. Patterns with `!` alone are for all other names."""
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
