"""What the commands that only look ask and how they show it, and the fleet as they and the hub's pages know
it. They change nothing, and a leaf's agent imports none of it."""
