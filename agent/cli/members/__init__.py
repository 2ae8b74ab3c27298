"""Edits the leaves and users of configurations, and applies them to running agents."""
