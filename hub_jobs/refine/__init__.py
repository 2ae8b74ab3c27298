"""Turns `bronze` into `readings` and `quarantine`: the job `refine`.

`run` plans a pass (`plan`), drops repeats by rows of bronze (`dedup`), and gives files to executors (`task`).
These parse rows (`messages`), decode lines (`lines`), and build Arrow columns (`readings`, `columns`), with
clock corrections (`clocks`, `clock_corrections`). `direct` handles bare numbers from devices by column.
"""
