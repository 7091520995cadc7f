"""``timeoutmgr pipeline``: the jobs on Spark. A command imports its job when it runs."""
