"""Runs the job by spark-submit hub_jobs/refine/__main__.py or python -m hub_jobs.refine; see
`hub_jobs.refine.run`.
"""

import sys

import hub_jobs.lean_imports  # noqa: F401 - before Arrow
from hub_jobs.refine.run import main

if __name__ == "__main__":
    sys.exit(main())
