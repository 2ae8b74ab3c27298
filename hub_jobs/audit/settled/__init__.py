"""Keeps audited data, so that the next audit need not read it: `files` it rests on, and `past` results."""
