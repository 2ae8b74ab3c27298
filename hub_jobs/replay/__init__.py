"""Decodes a range of `bronze` again and replaces the earlier results: the job `replay`."""
