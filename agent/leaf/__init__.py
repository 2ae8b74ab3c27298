"""Runs on an edge machine only. A reading passes `inputs`, `intake`, `rules` and `publish` into the leaf's
stream; `link` delivers it to the hub.
"""
