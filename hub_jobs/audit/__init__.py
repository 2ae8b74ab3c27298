"""The job `audit`: what the agents acknowledged against what the tables hold.

It compares five pairs, each in a place of its own; `run.py` puts what they find together:

- `claims/`: the leaves' ledger records against the batches in bronze, one account a run; and what the leaves
  announced against bronze, which is in transit.
- `rows/`: bronze against readings and quarantine. Each batch must have the places 0 to count - 1 once each.
- `streams/`: the sequences of the hub's and the leaves' streams against bronze, and why some never came.
- `bronze_contents.py`: bronze against the cache `seen` and against the offsets that ingest and refine wrote.
- `contents/` (with `--deep`): readings and quarantine against decoded payloads, and payloads against digests.

`by_hour.py` sums the counts by the hour; `report.py` and `html_report.py` say the result. What the log of a
table names and no one can read is in `unreadable.py`: a loss can't be excluded there.
"""
