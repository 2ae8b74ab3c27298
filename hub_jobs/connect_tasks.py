"""Tasks on a server of Spark Connect, which takes plans and no functions of an RDD: pieces of work travel in
the plan, and results come back as rows of bounded size. A plan is one message of at most 128 MiB, and a row
of that size takes all the memory that Spark gives a server by default."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar
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
_PLAN_BYTES: Final = 4 << 20
"""Each task reads the whole plan, so many tasks with large pieces are several plans."""
_ROW_BYTES: Final = 1 << 20
_ZSTD_LEVEL: Final = 1


def check_server() -> None:
    """Raise `Unreachable` where nothing listens at the address in `SPARK_REMOTE`: PySpark itself would try
    for ten minutes, without a word."""
    url = os.environ[REMOTE]
    try:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname or "", parts.port or _PORT), _SECONDS):
            pass
    except (OSError, ValueError) as error:
        # What follows the address may hold a token.
        raise Unreachable(
            f"no Spark Connect server answers at {url.partition(';')[0]} ({error}): start it, or "
            f"correct {REMOTE}"
        ) from error


def run_by_plan(spark: SparkSession, task: Callable[[Work], Result], work: Sequence[Work]) -> list[Result]:
    """One Spark task for every piece of work; their results in order."""
    return [
        result
        for pieces in plans([pickle.dumps(piece) for piece in work])
        for result in _run_plan(spark, task, pieces)
    ]


def plans(pieces: Sequence[bytes]) -> Iterator[list[bytes]]:
    """The pieces in order, as many together as one plan takes; one that is larger is a plan of its own."""
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
