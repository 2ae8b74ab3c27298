"""Runs at the hub only: the fleet's registrar and pages."""
