"""Delayed delivery through a delayed message store."""
