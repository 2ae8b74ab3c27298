"""Runs the job by spark-submit hub_jobs/audit/__main__.py or python -m hub_jobs.audit; see
`hub_jobs.audit.run`.
"""

import sys

import hub_jobs.lean_imports  # noqa: F401 - before Arrow
from hub_jobs.audit.run import main

if __name__ == "__main__":
    sys.exit(main())
