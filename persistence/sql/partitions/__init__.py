"""Partitions of the pending timeouts on PostgreSQL, by ranges of due times."""
