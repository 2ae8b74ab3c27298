"""The job `audit`: what the agents acknowledged against what is in the tables."""
