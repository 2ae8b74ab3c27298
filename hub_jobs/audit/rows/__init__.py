"""Scans bronze, readings and quarantine once, counts rows and reconciles them."""
