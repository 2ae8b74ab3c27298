"""From a chunk of readings to an acknowledged batch in the leaf's stream."""
