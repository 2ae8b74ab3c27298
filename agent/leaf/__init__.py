"""What runs only on an edge machine. A reading goes through `inputs`, `intake`, `rules` and `publish` into
the leaf's stream, and `link` sees to it that the hub gets it."""
