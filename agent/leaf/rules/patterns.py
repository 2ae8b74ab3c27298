"""Patterns of names: `*`, `?` and `[…]` as in a shell, upper and lower case told apart. No I/O."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence

Match = Callable[[str], bool]


def compile_patterns(patterns: Sequence[str]) -> Match | None:
    """Whether a name matches one of the patterns and none of those that begin with `!`; None when every name
    does. Patterns with `!` alone are for all other names."""
    wanted = [one for one in patterns if not one.startswith("!")]
    unwanted = [one[1:] for one in patterns if one.startswith("!")]
    if not unwanted and (not wanted or "*" in wanted):
        return None
    takes, leaves = _any(wanted), _any(unwanted)
    return lambda name: (takes is None or takes(name)) and not (leaves is not None and leaves(name))


def _any(patterns: Sequence[str]) -> Match | None:
    if not patterns:
        return None
    found = re.compile("|".join(map(fnmatch.translate, patterns)))
    return lambda name: found.match(name) is not None
