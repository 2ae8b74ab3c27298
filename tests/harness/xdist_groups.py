"""How tests are dealt out to the processes of `pytest --numprocesses`."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

_TOGETHER = (
    "tests/spark/",
    "tests/e2e/test_client_contract",
    "tests/e2e/test_hub_machines",
    "tests/upstream/",
    "tests/unit/test_walls.py",
)


class XdistScheduler(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """One test at a time to whichever process is free, but those that share what is dear to start, first of
    all, to one process: the Spark tests a Java machine, others their servers, or what they have parsed."""

    def _split_scope(self, nodeid: str) -> str:
        return next((shared for shared in _TOGETHER if nodeid.startswith(shared)), nodeid)
