"""``timeoutmgr migrate``."""
