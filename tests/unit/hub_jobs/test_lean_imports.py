"""What a job imports before it does anything."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_EACH = """
import os, runpy, sys
for job in ("audit", "gaps", "ingest", "maintain", "refine", "replay", "rollup"):
    runpy.run_module(f"hub_jobs.{job}.__main__", run_name="started")
"""


def _after_each_job(program: str) -> None:
    given = {name: text for name, text in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    command = [sys.executable, "-c", _EACH + program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=given)
    assert done.returncode == 0, done.stderr


def test_no_job_imports_pandas_and_it_can_be_had_afterwards() -> None:
    _after_each_job("""
import pyarrow as pa
assert "pandas" not in sys.modules
assert pa.table({"a": [1]}).to_pandas().shape == (1, 1)
""")


def test_no_job_reads_the_documents_of_arrows_options_which_can_be_read_afterwards() -> None:
    _after_each_job("""
import pyarrow.compute as pc
from pyarrow.vendored.docscrape import NumpyDocString
for option in NumpyDocString(pc.CountOptions.__doc__)["Parameters"]:
    assert option.desc[0] not in pc.count.__doc__
""")


@pytest.mark.skipif(os.cpu_count() == 1, reason="numpy has a thread for each further core")
def test_numpy_starts_no_threads_in_a_job() -> None:
    _after_each_job("""
names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
# Those of Arrow and delta-rs have names of their own.
assert names.count(open("/proc/self/comm").read()) == 1, names
""")
