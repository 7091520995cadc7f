"""Revisions of the timeout stores' tables."""
