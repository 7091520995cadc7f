"""``timeoutmgr pipeline``: the jobs on Spark. What runs there is imported when a job is run."""
