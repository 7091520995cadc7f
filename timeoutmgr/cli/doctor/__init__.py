"""``timeoutmgr doctor``: its checks, and the findings that they yield."""
