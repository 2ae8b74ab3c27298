"""Plays `petiole demo`: hub, leaves, faults, jobs and proof."""
