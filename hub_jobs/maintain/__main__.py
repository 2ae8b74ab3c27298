"""python -m hub_jobs.maintain, without Spark: what the job does stands in `hub_jobs.maintain.run`."""

import sys

import hub_jobs.without_pandas  # noqa: F401 - before Arrow
from hub_jobs.maintain.run import main

if __name__ == "__main__":
    sys.exit(main())
