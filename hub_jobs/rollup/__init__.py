"""The job `rollup`: `readings` by the minute, the hour and the day."""
