"""One process put together: a leaf's agent or a hub's, its inputs, its admin server, its reloads, its end."""
