"""Which aggregate takes the sources of which leaf. Pure.

An assignment is kept with the leaf's record and never moved: an epoch that changed its aggregate would have
to begin anew. The classes of a leaf go together where they fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def assigned(
    classes: Sequence[str],
    kept: Mapping[str, str],
    load: Mapping[str, int],
    max_sources: int,
) -> dict[str, str]:
    """The aggregate of each class of a leaf. `kept` gives those that have one; `load` is how many sources
    every aggregate has, in the order in which they are preferred. Where nothing has room the emptiest takes
    it: a limit that was lowered does not shut a leaf out."""
    new = [cls for cls in classes if cls not in kept]
    free = {name: max_sources - count for name, count in load.items()}
    placed = {cls: kept[cls] for cls in classes if cls in kept}
    if not new:
        return placed
    home = max(set(placed.values()) & free.keys(), key=lambda name: free[name], default=None)
    if home is None or free[home] < len(new):
        home = max(free, key=lambda name: free[name])
    if free[home] >= len(new):
        return placed | dict.fromkeys(new, home)
    for cls in new:
        emptiest = max(free, key=lambda name: free[name])
        free[emptiest] -= 1
        placed[cls] = emptiest
    return placed
