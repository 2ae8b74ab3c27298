"""What most cases do before and after the fault."""

from __future__ import annotations

from tests.faults.oracle.judge import Terms
from tests.faults.world.environment import FaultEnvironment


def in_table(w: FaultEnvironment) -> None:
    """What came so far is in the table."""
    w.mended()
    w.tables.ingest()
    w.tables.refine()
    w.load.flows()


def little_came_again(w: FaultEnvironment) -> None:
    """After a verdict: of what the hub held it was sent little again."""
    again = w.tables.sent_again()
    w.case.sent_again = again.messages
    w.case.saw(str(again))
    assert again.messages <= again.bound, str(again)


def judged(w: FaultEnvironment, terms: Terms | None = None) -> None:
    """All goes on, and every promise was kept."""
    w.load.flows()
    w.mended()
    w.verdict(terms)
