"""Assembles one process: agent, inputs, admin server, reloads and end."""
