"""Revisions of a delayed message store's table."""
