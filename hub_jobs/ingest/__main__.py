"""spark-submit hub_jobs/ingest/__main__.py, or python -m hub_jobs.ingest: what the job does stands in
`hub_jobs.ingest.run`."""

import sys

from hub_jobs.ingest.run import main

if __name__ == "__main__":
    sys.exit(main())
