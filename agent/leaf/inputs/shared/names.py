"""Names that are wanted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate


class Names:
    """Which names are wanted, by globs: those of `keep` (none: all) that are not of `drop`."""

    def __init__(self, keep: Sequence[str], drop: Sequence[str]) -> None:
        self._keep = _any_of(keep or ["*"])
        self._drop = _any_of(drop)

    def wants(self, name: str) -> bool:
        """Whether this one is."""
        return self._keep.match(name) is not None and self._drop.match(name) is None


def _any_of(globs: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, globs)) or r"(?!)")
