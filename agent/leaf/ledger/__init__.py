"""What the agent accounts for: how many readings it acknowledged, under which batches, and what became of
them."""
