"""Runs commands from the leaf's mirror once, in order, and answers each by a reading.

A command only chooses a verb of `agent.leaf.commands.handlers`; none starts programs, opens paths or shows
secrets.
"""
