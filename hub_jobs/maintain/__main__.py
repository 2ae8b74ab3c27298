"""python -m hub_jobs.maintain, without Spark: what the job does stands in `hub_jobs.maintain.run`."""

import sys

from hub_jobs.maintain.run import main

if __name__ == "__main__":
    sys.exit(main())
