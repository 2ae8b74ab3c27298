"""Publishes chunks of readings as acknowledged batches in the leaf's stream."""
