"""Sending batches again that a leaf's stream still holds, under their own ids, so that they travel the link
once more; the table drops what it has. Works with a running agent and without one.
"""
