"""Keeps a link's byte stream over breaks of its TCP connection, by a relay at the leaf and at the hub."""
