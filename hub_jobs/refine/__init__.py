"""The job `refine`: from `bronze` into `readings` and `quarantine`.

A pass goes one way: `run` plans it (`plan`), drops repeats on rows of bronze (`dedup`), and gives the files
to the executors (`task`). There each row is parsed (`messages`), its lines are decoded (`lines`), and
readings are assembled into Arrow columns (`readings`, `columns`), with times of wrong clocks corrected
(`clocks`, `clock_corrections`). Bare numbers that devices publish themselves take a shorter way (`direct`).
"""
