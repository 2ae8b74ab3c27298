"""The claims of the leaves, from their ledger records and announcements, against what arrived."""
