"""How a job ends: one exit code an outcome, and one sentence on standard error for all but the good ones."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import pyarrow as pa

from agent.contract import Exit
from hub_jobs.source.protocol import ApiError, Denied, Unreachable, WireError
from hub_jobs.tables.delta import ConflictError, TableError


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
    except (TableError, WireError, OSError, pa.ArrowException) as error:
        return _failed(name, Exit.FAILED, error)
    except Exception as error:
        if (reason := _spark_says(error)) is None:
            raise
        return _failed(name, Exit.FAILED, reason)


def gravest(codes: Iterable[Exit]) -> Exit:
    """The code of several runs: a loss, which is said once, before what the next run meets again, and there
    what a person has to mend before what may pass by itself."""
    return min(codes, key=_GRAVITY.index, default=Exit.WELL)


_GRAVITY: Final = (Exit.USAGE, Exit.LOSS, Exit.FAILED, Exit.UNREACHABLE, Exit.CONFLICT, Exit.WELL)


def say(name: str, text: str) -> None:
    """Print one line of a job to standard error."""
    print(f"{name}: {text}", file=sys.stderr, flush=True)


def listed(items: Sequence[str], most: int = 10) -> str:
    """Some of many, and how many more."""
    shown = "; ".join(items[:most])
    return f"{shown}; and {len(items) - most} more" if len(items) > most else shown


def _spark_says(error: Exception) -> str | None:
    """Why a task failed as often as it may, in a line; None for what is not of Spark. The whole of it stands
    in Spark's own log before."""
    if type(error).__module__.partition(".")[0] not in ("py4j", "pyspark"):
        return None
    lines = [line.strip() for line in str(error).splitlines()]
    last = [at for at, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    # A task in Python ends its traceback with the error; what follows is of the Java machine.
    causes = [line for line in lines[last[-1] if last else 0 :] if _ERROR.match(line)]
    return f"Spark could not do it: {causes[0] if causes else lines[0]}"


_ERROR: Final = re.compile(r"[\w.]*(Error|Exception|Invalid|NotFound)\b.*: ")


def _failed(name: str, code: Exit, error: Exception | str) -> Exit:
    say(name, str(error))
    return code
