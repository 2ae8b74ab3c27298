"""Controls the leaf's link to the hub: observe, decide, act."""
