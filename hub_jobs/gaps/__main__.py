"""Runs the job by spark-submit hub_jobs/gaps/__main__.py or python -m hub_jobs.gaps;
see `hub_jobs.gaps.run`.
"""

import sys

import hub_jobs.lean_imports  # noqa: F401 - before Arrow
from hub_jobs.gaps.run import main

if __name__ == "__main__":
    sys.exit(main())
