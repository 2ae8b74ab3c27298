"""Runs tasks on Spark Connect: work travels in plans, and results return as rows of bounded size.

A plan is at most 128 MiB; a row of that size would fill a server's default memory.
"""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import zstandard

from hub_jobs.source.protocol import Unreachable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Work = TypeVar("Work")
Result = TypeVar("Result")

REMOTE: Final = "SPARK_REMOTE"
_PORT: Final = 15002
_SECONDS: Final = 10.0
RETRIES: Final[dict[str, Any]] = {
    "max_retries": 6,
    "initial_backoff": 50,
    "backoff_multiplier": 4.0,
    "max_backoff": 8_000,
    "max_server_retry_delay": 8_000,
}
"""PySpark's retries of unanswered requests in ms, about 20 s in all. A restarted server has lost the job, and
PySpark's default waits ten minutes twice.
"""
_ENDED: Final = ("INVALID_HANDLE.", "RESPONSE_ALREADY_RECEIVED")
"""PySpark's errors for a restarted server."""
_PLAN_BYTES: Final = 4 << 20
"""Bytes of work per plan; each task reads the whole plan."""
_ROW_BYTES: Final = 1 << 20
_ZSTD_LEVEL: Final = 1


def check_server() -> None:
    """Raise `Unreachable` when nothing listens at `SPARK_REMOTE`; PySpark would retry silently."""
    url = os.environ[REMOTE]
    try:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname or "", parts.port or _PORT), _SECONDS):
            pass
    except (OSError, ValueError) as error:
        raise Unreachable(
            f"no Spark Connect server answers at {_address()} ({error}): start it, or correct {REMOTE}"
        ) from error


def _address() -> str:
    """Return the address in `SPARK_REMOTE` without parameters, which may contain a token."""
    return os.environ[REMOTE].partition(";")[0]


def connected() -> SparkSession:
    """Return this process's session at `SPARK_REMOTE`. Raises `Unreachable` as `check_server`."""
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    check_server()
    spark = SparkSession.builder.getOrCreate()
    spark.client.set_retry_policies([DefaultPolicy(**RETRIES)])
    return spark


def lost_server(error: Exception) -> str | None:
    """Explain an error caused by the server's end and close the session, None for other errors."""
    if REMOTE not in os.environ or type(error).__module__.partition(".")[0] != "pyspark":
        return None
    from grpc import StatusCode
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    is_away = isinstance(error, SparkConnectGrpcException) and (
        error.getGrpcStatusCode() == StatusCode.UNAVAILABLE
    )
    if not is_away and not any(words in str(error) for words in _ENDED):
        return None
    _close_session()
    return (
        f"the Spark Connect server at {_address()} ended while the job ran, or cannot be reached any more: "
        "start it if it does not run; the next run does again what this one has not committed"
    )


def _close_session() -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    if spark is not None:
        with suppress(Exception):  # the process would ask the server again before it ends
            spark.client.close()


def run_by_plan(spark: SparkSession, task: Callable[[Work], Result], work: Sequence[Work]) -> list[Result]:
    """Run a task for every piece of work; returns results in order."""
    return [
        result
        for pieces in plans([pickle.dumps(piece) for piece in work])
        for result in _run_plan(spark, task, pieces)
    ]


def plans(pieces: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Yield pieces in order, grouped by plan; a larger piece is a plan of its own."""
    plan: list[bytes] = []
    size = 0
    for piece in pieces:
        if plan and size + len(piece) > _PLAN_BYTES:
            yield plan
            plan, size = [], 0
        plan.append(piece)
        size += len(piece)
    if plan:
        yield plan


def _run_plan(spark: SparkSession, task: Callable[[Work], Result], pieces: list[bytes]) -> Iterator[Result]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for at in batch["id"].to_pylist():
                done = pickle.dumps(task(pickle.loads(pieces[at])))  # noqa: S301 - of this very driver
                result = zstandard.compress(done, _ZSTD_LEVEL)
                for part, first in enumerate(range(0, len(result), _ROW_BYTES)):
                    row = {"at": at, "part": part, "result": result[first : first + _ROW_BYTES]}
                    yield pa.RecordBatch.from_pylist([row])

    numbers = spark.range(0, len(pieces), 1, len(pieces))
    rows = numbers.mapInArrow(run, "at long, part long, result binary").toArrow()
    parts: list[dict[int, bytes]] = [{} for _ in pieces]
    for batch in rows.to_batches():
        for row in batch.to_pylist():
            parts[row["at"]][row["part"]] = row["result"]
    for found in parts:
        result = b"".join(found[part] for part in sorted(found))
        yield pickle.loads(zstandard.decompress(result))  # noqa: S301 - of our own task
