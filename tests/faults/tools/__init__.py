"""Rigs that make real faults: a wire that loses packets, a disk that fills, old servers.

None touches the clock or anything that another process uses, and each cleans up after itself, also when what
used it fails.
"""
