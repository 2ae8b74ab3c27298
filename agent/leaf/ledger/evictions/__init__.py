"""What a stream with the policy `old` has discarded: which batches of which runs, how many readings, and
which direct messages."""
