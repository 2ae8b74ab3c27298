"""What a job imports before it does anything."""

from __future__ import annotations

import subprocess
import sys

_EACH = """
import runpy, sys
for job in ("audit", "gaps", "ingest", "maintain", "refine", "replay", "rollup"):
    runpy.run_module(f"hub_jobs.{job}.__main__", run_name="started")
import pyarrow as pa
assert "pandas" not in sys.modules
assert pa.table({"a": [1]}).to_pandas().shape == (1, 1)
"""


def test_no_job_imports_pandas_and_it_can_be_had_afterwards() -> None:
    done = subprocess.run([sys.executable, "-c", _EACH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
