"""How a job ends: one exit code an outcome, and one sentence on standard error for all but the good ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from agent.contract import Exit
from hub_jobs.source.wire import ApiError, Denied, Unreachable, WireError
from hub_jobs.tables import ConflictError, TableError


def ended(name: str, job: Callable[[], Exit]) -> Exit:
    """Run a job; what it raises for outcomes that are foreseen becomes a sentence and an exit code."""
    try:
        return job()
    except ConflictError as error:
        return _failed(name, Exit.CONFLICT, error)
    except (Unreachable, Denied) as error:
        return _failed(name, Exit.UNREACHABLE, error)
    except ApiError as error:
        return _failed(name, Exit.UNREACHABLE if error.code >= 500 else Exit.FAILED, error)
    except (TableError, WireError, OSError) as error:
        return _failed(name, Exit.FAILED, error)


def say(name: str, text: str) -> None:
    """One line of a job to whoever watches it."""
    print(f"{name}: {text}", file=sys.stderr, flush=True)


def listed(items: Sequence[str], most: int = 10) -> str:
    """Some of many, and how many more."""
    shown = "; ".join(items[:most])
    return f"{shown}; and {len(items) - most} more" if len(items) > most else shown


def _failed(name: str, code: Exit, error: Exception) -> Exit:
    say(name, str(error))
    return code
