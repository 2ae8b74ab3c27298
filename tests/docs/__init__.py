"""Documents, generated files and shipped configurations say what is so.

Commands, options and paths that a page names exist, tables match the code, figures match the recorded
results, units and dashboards name what there is. A page that a user follows step by step on servers of
its own is played in `tests/faults/slow`.
"""
