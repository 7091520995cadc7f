"""``timeoutmgr deadletters`` and ``timeoutmgr journal``."""
