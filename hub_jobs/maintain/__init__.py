"""The job `maintain`: compaction, thinning and cleaning of the tables."""
