"""Revisions of the dead-letter store, run by ``timeoutmgr install``."""
