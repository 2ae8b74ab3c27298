"""Times as readings have them. No I/O."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from agent import contract
from agent.leaf.inputs.formats.line_values import LineError

_KNOWN: Final = 8192
_EPOCH: Final = datetime(1970, 1, 1)
"""Without its offset, which is written as Z."""
_FIRST_SECOND: Final = -62_135_596_800
"""The year 1 begins."""


class Stamps:
    """Writes times, and remembers seconds: most readings share theirs with others."""

    def __init__(self) -> None:
        self._seconds: dict[int, bytes] = {}
        self.begun: dict[bytes, bytes] = {}
        """How readings begin, by the ten digits of their second; `begin` makes what is not here."""

    def reading(self, ns: int) -> bytes:
        """How a reading of this time (ns since 1970) begins; raises `LineError`."""
        second, rest = divmod(ns, 10**9)
        begun = self._seconds.get(second) or self._second(second)
        return begun + (b".%09d" % rest).rstrip(b"0") + b'Z",' if rest else begun + b'Z",'

    def machine(self, ns: int) -> bytes:
        """The same for a time by this machine's clock."""
        return f'{{"ts":"{contract.machine_time(ns)}",'.encode()

    def digits(self, ns: bytes) -> bytes:
        """The same for nineteen digits, which is how nearly all senders write nanoseconds."""
        begun = self.begun.get(ns[:10]) or self.begin(ns[:10])
        rest = ns[10:].rstrip(b"0")
        return begun + b"." + rest + b'Z",' if rest else begun + b'Z",'

    def begin(self, second: bytes) -> bytes:
        """How the readings of a second begin, up to its fraction; raises `LineError`."""
        if len(self.begun) >= _KNOWN:
            self.begun.clear()
        begun = self.begun[second] = _begin(int(second))
        return begun

    def _second(self, second: int) -> bytes:
        if len(self._seconds) >= _KNOWN:
            self._seconds.clear()
        begun = self._seconds[second] = _begin(second)
        return begun


def _begin(second: int) -> bytes:
    if not _FIRST_SECOND <= second < contract.EPOCH_LIMIT:
        raise LineError("the time is outside of the years 1 to 9999; see the parameter precision")
    return f'{{"ts":"{(_EPOCH + timedelta(seconds=second)).isoformat()}'.encode()
