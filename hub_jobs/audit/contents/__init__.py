"""For `--deep`: the contents of readings and quarantine against the payloads of bronze."""
