"""The leaf's side of its link to the hub: observe, decide, act."""
