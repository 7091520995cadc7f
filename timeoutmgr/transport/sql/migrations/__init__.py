"""Revisions of the SQL queue, run by ``timeoutmgr install``."""
