"""Bronze against readings and quarantine, row by row: scanned once, counted, and reconciled."""
