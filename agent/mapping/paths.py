"""Compiles paths (JMESPath) and templates of a mapping to functions. No I/O.

Plain paths, which are most, become lookups; `jmespath` evaluates the rest of the allowed expressions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from jmespath import exceptions
from jmespath.parser import Parser
from jmespath.visitor import TreeInterpreter
from msgspec import Struct

from agent import contract

MAX_PATH: Final = 300
"""Longest path in characters, which bounds the time of its evaluation."""
MAX_TEMPLATE: Final = 1_000
_MAX_PARTS: Final = 20
"""Parts of a template, each of which may be as long as a text."""
_MAX_PART: Final = contract.MAX_TEXT + 1
"""Characters of a part of a template, above any limit of the whole."""
MISSING: Final = object()
"""Found by a plain path that leads nowhere, unlike None for `null`."""
_ALLOWED: Final = (
    *("and_expression", "comparator", "current", "field", "filter_projection", "flatten"),
    *("function_expression", "identity", "index", "index_expression", "literal", "not_expression"),
    *("or_expression", "pipe", "projection", "slice", "subexpression", "value_projection"),
)
_INNER: Final = (
    *("filter_projection", "flatten", "index_expression", "projection", "subexpression", "value_projection"),
)
_FUNCTIONS: Final = (
    *("contains", "ends_with", "join", "length", "not_null", "starts_with", "to_string", "type"),
)
_PART: Final = re.compile(r"\{([^{}]*)\}")
_TOPIC: Final = re.compile(r"(0|[1-9][0-9]?)(\+?)\Z")
_encode = msgspec.json.Encoder().encode

Steps = tuple[str | int, ...]


class PathError(ValueError):
    """A path or template can't be used; the text has fault and remedy."""


class Place(Struct, gc=False):
    """The surroundings of a value: its record with name or number, its payload, and the topic with levels."""

    record: Any
    payload: Any
    topic: str
    levels: Sequence[str]
    key: str
    memo: dict[str, Any]
    """Values of costly paths in this payload."""
    parent: Any = None
    """The record around a record of `each`."""


class Path:
    """A compiled path. `steps` are those of a plain path, else None."""

    def __init__(self, text: str) -> None:
        if not 1 <= len(text) <= MAX_PATH:
            raise PathError(f"a path of {len(text)} characters; write 1 to {MAX_PATH}")
        self.text = text
        self.of_payload = text == "$" or text.startswith("$.")
        self.of_parent = text.startswith("^.")
        inner = "@" if text == "$" else text.removeprefix("$.").removeprefix("^.")
        tree = _tree(inner)
        self.steps = _steps(tree)
        self.find: Callable[[Any], Any] = _search(tree) if self.steps is None else _lookup(self.steps)
        """Returns a value, None for the `null` of a plain path, or `MISSING`."""
        self.look = self._looker()
        """Returns the value at a place, or `MISSING`."""

    def at(self, place: Place) -> Any:
        """Return the value at a place, or None."""
        found = self.look(place)
        return None if found is MISSING else found

    def _looker(self) -> Callable[[Place], Any]:
        find, text = self.find, self.text
        if self.of_parent:
            return lambda place: find(place.parent)
        if not self.of_payload:
            return lambda place: find(place.record)
        if self.steps is not None:
            return lambda place: find(place.payload)

        def look(place: Place) -> Any:
            # Once a payload, as each of its records would search it again.
            if text not in place.memo:
                place.memo[text] = find(place.payload)
            return place.memo[text]

        return look


def split_members(text: str) -> tuple[str, bool]:
    """Return a path of records without a final `.*`, and whether it had that: a record a member."""
    if text == "*":
        return "@", True
    return (text.removesuffix(".*"), True) if text.endswith(".*") else (text, False)


def _tree(text: str) -> dict[str, Any]:
    try:
        tree: dict[str, Any] = Parser().parse(text).parsed
    except (exceptions.JMESPathError, ValueError, RecursionError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise PathError(
            f"{text!r:.80} is no path of JMESPath ({reason:.120}); write it as outer.inner"
        ) from None
    _check(tree, text)
    return tree


def _check(node: Mapping[str, Any], text: str) -> None:
    kind = node["type"]
    if kind not in _ALLOWED:
        raise PathError(f"{text!r:.80} has a {kind.replace('_', ' ')}, which a mapping has not; leave it out")
    if kind == "function_expression" and node["value"] not in _FUNCTIONS:
        raise PathError(f"{text!r:.80} calls {node['value']}; take one of {', '.join(_FUNCTIONS)}")
    if kind in _INNER and node["children"][0]["type"] == "not_expression":
        # jmespath 1.1.0 reads !a.b as (!a).b (findings/jmespath-negates-only-the-first-name-of-a-path.sh).
        raise PathError(f"{text!r:.80} has ! before a longer path; write it as !(a.b)")
    for child in node["children"]:
        if isinstance(child, dict):
            _check(child, text)


def _steps(node: Mapping[str, Any]) -> Steps | None:
    """Return the names and numbers of a plain path, None for another."""
    kind = node["type"]
    if kind in ("current", "identity"):
        return ()
    if kind in ("field", "index"):
        return (node["value"],)
    if kind in ("subexpression", "index_expression"):
        parts = [_steps(child) for child in node["children"]]
        return None if None in parts else tuple(step for part in parts if part for step in part)
    return None


def _lookup(steps: Steps) -> Callable[[Any], Any]:
    if not steps:
        return lambda value: value
    if len(steps) == 1 and isinstance(steps[0], str):
        name = steps[0]
        return lambda value: value.get(name, MISSING) if type(value) is dict else MISSING

    def find(value: Any) -> Any:
        for step in steps:
            if type(value) is dict and type(step) is str:
                value = value.get(step, MISSING)
            elif type(value) is list and type(step) is int and -len(value) <= step < len(value):
                value = value[step]
            else:
                return MISSING
        return value

    return find


def _search(tree: dict[str, Any]) -> Callable[[Any], Any]:
    evaluate = _evaluator(tree)

    def find(value: Any) -> Any:
        try:
            found = evaluate(value)
        except (exceptions.JMESPathError, TypeError, ValueError, RecursionError):
            return MISSING  # an operation on a value of another type finds nothing
        return MISSING if found is None else found

    return find


def _evaluator(node: dict[str, Any]) -> Callable[[Any], Any]:
    """Return the function of an expression, which gives None for nothing. The usual conditions are functions
    of their own, a tenth of the time of `jmespath`.
    """
    kind, children = node["type"], node["children"]
    if (steps := _steps(node)) is not None:
        look = _lookup(steps)
        return lambda value: None if (found := look(value)) is MISSING else found
    if kind == "literal":
        return lambda value, fixed=node["value"]: fixed  # type: ignore[misc]
    if kind == "not_expression":
        inner = _evaluator(children[0])
        return lambda value: not _is_true(inner(value))
    if kind in ("or_expression", "and_expression"):
        left, right = map(_evaluator, children)
        if kind == "or_expression":
            return lambda value: found if _is_true(found := left(value)) else right(value)
        return lambda value: right(value) if _is_true(found := left(value)) else found
    # Of texts only: the numbers and truth values of JMESPath are equal by rules of their own.
    is_comparison = kind == "comparator" and node["value"] in ("eq", "ne")
    if is_comparison and children[1]["type"] == "literal" and type(children[1]["value"]) is str:
        first, text, equal = _evaluator(children[0]), children[1]["value"], node["value"] == "eq"
        return lambda value: (first(value) == text) is equal
    visit = TreeInterpreter().visit
    return lambda value: visit(node, value)


def _is_true(value: Any) -> bool:
    """Tell whether JMESPath takes a value for true; 0 is."""
    return bool(value) or (type(value) in (int, float))


def text_of(value: Any) -> str | None:
    """Return a value as text of a name or tag: text as it is, a number or bool as JSON; None for another."""
    kind = type(value)
    if kind is str:
        return value[:_MAX_PART]  # type: ignore[no-any-return]
    if kind is float or kind is int or kind is bool:
        return str(value) if kind is int else _encode(value).decode()
    return None


class Template:
    """Text with parts in braces: topic levels, `member`, `key`, or paths.

    `constant` is the whole text of a template without parts. `by_member` tells whether the text depends on
    nothing but the member.
    """

    def __init__(self, text: str) -> None:
        if not 1 <= len(text) <= MAX_TEMPLATE:
            raise PathError(f"a template of {len(text)} characters; write 1 to {MAX_TEMPLATE}")
        rest = _PART.sub("", text)
        if "{" in rest or "}" in rest:
            raise PathError(f"{text!r:.80} is not a template; write a path in it as {{outer.inner}}")
        if text.count("{") > _MAX_PARTS:
            raise PathError(f"a template of {text.count('{')} parts; write at most {_MAX_PARTS}")
        self.paths: list[Path] = []
        self.has_topic = self.by_member = False
        pieces = _PART.split(text)
        parts = [self._part(piece) if at % 2 else piece for at, piece in enumerate(pieces)]
        parts = [part for part in parts if part != ""]
        self.constant = text if len(pieces) == 1 else None
        self.by_member = self.by_member and not self.has_topic and not self.paths and "{key}" not in text
        self.fill = _filler(parts)
        """Returns the text for a place and member, or None where a part is missing."""

    def _part(self, inner: str) -> Callable[[Place, str], str | None]:
        if inner == "member":
            self.by_member = True
            return lambda place, member: member
        if inner == "key":
            return lambda place, member: place.key
        if (match := _TOPIC.match(inner)) is not None:
            self.has_topic = True
            return _level(int(match[1]), bool(match[2]))
        path = Path(inner)
        self.paths.append(path)
        return lambda place, member: text_of(path.at(place))


def _level(number: int, joined: bool) -> Callable[[Place, str], str | None]:
    if number == 0:
        return lambda place, member: place.topic or None
    if joined:
        return lambda place, member: ".".join(place.levels[number - 1 :]) or None
    return lambda place, member: place.levels[number - 1] if number <= len(place.levels) else None


def _filler(parts: list[Any]) -> Callable[[Place, str], str | None]:
    if len(parts) == 1:
        only = parts[0]
        return only if callable(only) else lambda place, member: only

    def fill(place: Place, member: str) -> str | None:
        texts = [part if type(part) is str else part(place, member) for part in parts]
        return None if None in texts else "".join(texts)

    return fill


def levels_of(topic: str, separator: str) -> Sequence[str]:
    """Split a topic or subject."""
    return topic.split(separator) if topic else ()


def fits(wanted: Sequence[str], levels: Sequence[str]) -> bool:
    """Tell whether the levels of a topic match those of a filter with `+` and `#`."""
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        if len(levels) < len(wanted):
            return False
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(
        want in ("+", level) for want, level in zip(wanted, levels, strict=True)
    )
