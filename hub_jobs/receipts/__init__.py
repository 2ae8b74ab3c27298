"""Proves by signatures what the tables hold: the leaves' chains, and the hub's roots for each hour."""
