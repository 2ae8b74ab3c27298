"""Compacts, thins and cleans the tables: the job `maintain`."""
