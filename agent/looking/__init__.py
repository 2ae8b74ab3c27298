"""What the commands that only look ask and how they show it. They change nothing, and the agent itself
imports none of it."""
