"""Runs the job by spark-submit hub_jobs/rollup/__main__.py or python -m hub_jobs.rollup; see
`hub_jobs.rollup.run`.
"""

import sys

import hub_jobs.lean_imports  # noqa: F401 - before Arrow
from hub_jobs.rollup.run import main

if __name__ == "__main__":
    sys.exit(main())
