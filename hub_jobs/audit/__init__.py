"""Compares what agents acknowledged with what the tables hold: the job `audit`.

- `ledgers.py` gathers the leaves' ledger records; `accounts.py` and `findings.py` compare them with the
  batches in bronze, one account per run; `all_accounts.py` makes all accounts.
- `in_transit.py` compares the leaves' announcements with bronze.
- `rows/` compares bronze with readings and quarantine: each batch has the places 0 to count - 1 once each.
- `stream_gaps.py` and `gap_reasons.py` compare stream sequences with bronze and explain missing ones.
- `bronze_contents.py` compares bronze with the cache `seen` and the jobs' offsets.
- `compare_contents.py` and `file_sums.py` (with `--deep`) compare readings and quarantine with payloads, and
  payloads with digests.

`report.py` and `html_report.py` write the result, including unreadable files, where a loss can't be excluded.
"""
