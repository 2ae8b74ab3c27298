"""What Spark keeps and shows of what it was told."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from tests.security.hidden import files_below

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def plans(frame: DataFrame) -> bytes:
    """All that Spark shows of how a frame is read."""
    shown = io.StringIO()
    with redirect_stdout(shown):
        for mode in ("extended", "formatted", "codegen", "cost"):
            frame.explain(mode=mode)
    return f"{frame!r}\n{shown.getvalue()}".encode()


def events(spark: SparkSession) -> dict[str, bytes]:
    """The session's event log so far."""
    assert spark.sparkContext._jsc is not None
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    directory = spark.conf.get("spark.eventLog.dir")
    assert directory is not None
    found = files_below(Path(directory.removeprefix("file:")))
    assert b"SparkListenerJobEnd" in b"".join(found.values())
    return found
