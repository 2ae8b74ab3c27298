"""Runs the job by spark-submit hub_jobs/replay/__main__.py or python -m hub_jobs.replay; see
`hub_jobs.replay.run`.
"""

import sys

import hub_jobs.lean_imports  # noqa: F401 - before Arrow
from hub_jobs.replay.run import main

if __name__ == "__main__":
    sys.exit(main())
