"""What the audit looks at beside its counts: what bronze holds and held, files that can't be read, and single
batches."""
