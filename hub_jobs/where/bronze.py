"""What bronze holds of one domain. Pure."""

from __future__ import annotations

from hub_jobs.audit.bronze_contents import BronzeContents
from hub_jobs.tables.dedup_keys import SeenNumbers, lacking


def held_of(domain: str, here: SeenNumbers, cached: SeenNumbers, everything: SeenNumbers) -> BronzeContents:
    """What bronze holds of a domain, and held as far as the cache tells: its batches by the rows of the
    domain, which are `here`. Sequences of sources and of the hub's streams are those of all domains, as the
    cache knows them: a message whose source was not known then is of none."""
    others = {name: ranges for name, ranges in everything.spaces.items() if not _is_batch(name)}
    own = {name: ranges for name, ranges in here.spaces.items() if _is_batch(name)}
    known = {name: ranges for name, ranges in cached.spaces.items() if name.startswith(f"batch/{domain}/")}
    return BronzeContents(SeenNumbers(own | others), lacking(SeenNumbers(known), here))


def _is_batch(space: str) -> bool:
    return space.startswith("batch/")
