"""The job `audit`: what the agents acknowledged against what the tables hold.

It compares five pairs, each in a place of its own; `run.py` puts what they find together:

- `ledgers.py` gathers what the leaves' ledger records claim. `accounts.py` and `findings.py` compare it with
  the batches in bronze, one account a run; `all_accounts.py` makes all of them. `in_transit.py`: what the
  leaves announced against bronze.
- `rows/`: bronze against readings and quarantine. Each batch must have the places 0 to count - 1 once each.
  `totals.py` there sums the counts by run, class and hour.
- `stream_gaps.py`, `gap_reasons.py`: the sequences of the hub's and the leaves' streams against bronze, and
  why some never came.
- `bronze_contents.py`: bronze against the cache `seen` and against the offsets that ingest and refine wrote.
- `compare_contents.py`, `file_sums.py` (with `--deep`): readings and quarantine against decoded payloads, and
  payloads against digests.

`report.py` and `html_report.py` say the result, with the files that a table's log names and that can't be
read (`rows/scan.py`): a loss can't be excluded there.
"""
