"""The forms in which several inputs take readings. No I/O."""
