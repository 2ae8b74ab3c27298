"""Every target."""

from __future__ import annotations

from tests.fuzz import files, http_framing, inputs, opcua, records, syslog
from tests.fuzz.target import TARGETS

__all__ = ["TARGETS", "files", "http_framing", "inputs", "opcua", "records", "syslog"]
