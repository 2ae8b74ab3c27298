"""The job `gaps`: silent devices, holes in series, late readings."""
