"""What a check of the configuration finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: at which key, what stood there, and what to do."""

    key: str
    stood: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.key}: {self.stood}; {self.remedy}"
