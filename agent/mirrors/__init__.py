"""Mirrors and sources that the configuration declares: observe, decide, act."""
