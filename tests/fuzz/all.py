"""Every target."""

from __future__ import annotations

from tests.fuzz import files, inputs, protocols, records
from tests.fuzz.target import TARGETS

__all__ = ["TARGETS", "files", "inputs", "protocols", "records"]
