"""spark-submit hub_jobs/replay/__main__.py, or python -m hub_jobs.replay: what the job does stands in
`hub_jobs.replay.run`."""

import sys

import hub_jobs.lean_imports  # noqa: F401 - before Arrow
from hub_jobs.replay.run import main

if __name__ == "__main__":
    sys.exit(main())
