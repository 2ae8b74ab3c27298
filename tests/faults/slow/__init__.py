"""Faults that the matrix cannot judge by readings: commands, declared links, keys, object stores, documents.
A fault that hurts readings belongs into `tests/faults/matrix`."""
