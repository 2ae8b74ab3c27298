"""spark-submit hub_jobs/audit/__main__.py, or python -m hub_jobs.audit: what the job does stands in
`hub_jobs.audit.run`."""

import sys

from hub_jobs.audit.run import main

if __name__ == "__main__":
    sys.exit(main())
