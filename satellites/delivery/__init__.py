"""The last steps of a due message: sent, forwarded, dead, or moved to the error queue."""
