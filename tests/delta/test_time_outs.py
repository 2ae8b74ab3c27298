"""A case that its time-out interrupts is the only one that fails."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, NoReturn

import pytest

from tests.delta.conftest import apart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class InterruptedCallError(BaseException):
    """What the time-out of pytest is to the code that it interrupts: no Exception."""


def interrupt(*_: object) -> NoReturn:
    raise InterruptedCallError


def test_an_interrupted_call_leaves_its_answer_to_no_other(spark: SparkSession) -> None:
    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        # The error is kept, as pytest keeps that of a case: its frames keep the connection.
        timer.start()
        with pytest.raises(InterruptedCallError) as kept, apart():
            spark.sql("SELECT java_method('java.lang.Thread', 'sleep', 20000L)").collect()
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)

    assert [spark.sql(f"SELECT {n} AS n").collect()[0].n for n in range(3)] == [0, 1, 2]
    del kept
