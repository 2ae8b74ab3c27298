"""Runs the job by spark-submit hub_jobs/ingest/__main__.py or python -m hub_jobs.ingest; see
`hub_jobs.ingest.run`.
"""

import sys

import hub_jobs.lean_imports  # noqa: F401 - before Arrow
from hub_jobs.ingest.run import main

if __name__ == "__main__":
    sys.exit(main())
