"""Keeps the leaf's command mirror and local programs' consumers."""
