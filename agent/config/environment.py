"""`${NAME}` in the values of a configuration. What a variable holds is put in when a value is read; messages
about the configuration show its name, for it may be a secret.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Final

_NAMED: Final = re.compile(r"\$?\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SHORTEST: Final = 4
"""Characters of a value that is hidden: a shorter one is no secret, and is part of many words."""
_CUT: Final = 8
"""Characters of the beginning of a value that are hidden where a message was cut."""
_used: dict[str, str] = {}
"""What was put into a value by this process, and how it is shown instead."""


class UnsetError(Exception):
    """A variable is not set; the text is its name."""


def expanded(value: Any) -> Any:
    """A value with the variables in its texts, also in those of lists and tables; `$${NAME}` becomes the
    text `${NAME}`. Raises `UnsetError`."""
    if isinstance(value, str):
        return _NAMED.sub(_replacement, value)
    if isinstance(value, list):
        return [expanded(part) for part in value]
    if isinstance(value, dict):
        return {name: expanded(part) for name, part in value.items()}
    return value


def _replacement(found: re.Match[str]) -> str:
    if found[0].startswith("$$"):
        return found[0][1:]
    value = os.environ.get(found[1])
    if value is None:
        raise UnsetError(found[1])
    if len(value) >= _SHORTEST:
        _used[value] = found[0]
    return value


def hidden(text: str) -> str:
    """A message without what variables hold."""
    for value in sorted(_used, key=len, reverse=True):
        for form in {
            value,
            json.dumps(value)[1:-1],
            json.dumps(value, ensure_ascii=False)[1:-1],
            repr(value)[1:-1],
        }:
            text = _without(text, form, _used[value])
    return text


def _without(text: str, form: str, name: str) -> str:
    text = text.replace(form, name)
    if form[:_CUT] not in text:
        return text
    for length in range(len(form) - 1, _CUT - 1, -1):
        for end in ("…", '"', "'"):
            text = text.replace(form[:length] + end, name + end)
    return text
