"""The sequences of the hub's and the leaves' streams against bronze: gaps, and why they are there."""
