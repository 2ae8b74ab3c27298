"""Runs the job by python -m hub_jobs.maintain, without Spark; see `hub_jobs.maintain.run`."""

import sys

import hub_jobs.lean_imports  # noqa: F401 - before Arrow
from hub_jobs.maintain.run import main

if __name__ == "__main__":
    sys.exit(main())
