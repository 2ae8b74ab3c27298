"""Commands on the leaf: read from the leaf's own mirror of them, run once and in order, answered by readings.

Nothing here starts a program, opens a path that a command names, or shows a secret: a command only chooses
among the verbs of `agent.leaf.commands.handlers`.
"""
