"""Runs the hub's side of links: domain ownership, streams with sources, arrivals."""
