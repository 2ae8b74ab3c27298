"""How tests are dealt out to the processes of `pytest --numprocesses`."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

_SPARK = "tests/spark/"


class Dealer(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """One test at a time to whichever process is free; the Spark tests, first of all, to one process, for
    each that gets one of them starts a Java machine."""

    def _split_scope(self, nodeid: str) -> str:
        return _SPARK if nodeid.startswith(_SPARK) else nodeid
