"""Single entries of a Delta log, as they lie in the place of the table."""

from __future__ import annotations

import json
from typing import Any

from hub_jobs.tables.places import Place


def entries(table: Place, version: int) -> list[dict[str, Any]] | None:
    """The actions of one version of the table at this place, None where its log does not hold that version.
    Raises `OSError`."""
    try:
        text = (table / "_delta_log" / f"{version:020d}.json").read_text()
    except FileNotFoundError:
        return None
    return [json.loads(line) for line in text.splitlines() if line]
