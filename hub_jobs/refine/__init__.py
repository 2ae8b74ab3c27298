"""The job `refine`: from `bronze` into `readings` and `quarantine`."""
