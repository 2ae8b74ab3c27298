"""Runs jobs on Spark: session, Java class archive, Python worker daemon and Spark Connect tasks."""
