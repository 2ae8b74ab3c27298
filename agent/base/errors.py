"""What a part raises for things that only the machine or a person can change."""

from __future__ import annotations


class ConditionError(Exception):
    """Something on this machine is missing or in the way; the text says what, where and what to do. A part
    that raises it is tried again, and the text is logged once without a traceback."""
