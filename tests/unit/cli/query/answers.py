"""Answers of `/status` as the looking commands take them."""

from __future__ import annotations

from typing import Any, Final

LEAF: Final[dict[str, Any]] = {
    "role": "leaf",
    "domain": "edge-1",
    "link": {"state": "flowing", "sentence": "data flows", "attention": False},
    "classes": {
        "normal": {
            "state": "flowing",
            "sentence": "data flows",
            "last": 9,
            "confirmed": 4,
            "seconds_to_loss": None,
        }
    },
    "links": [],
}
