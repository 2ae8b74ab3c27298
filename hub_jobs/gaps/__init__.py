"""Finds silent devices, holes in series and late readings: the job `gaps`."""
