"""Real servers for the tests: found, started or installed, shared by a run, and cleaned up.

One *run* is one pytest command; with xdist it has one controller and some workers. A server is
looked for when the first test asks for it. A file of the run's folder keeps the result, so that
the other workers need not look again. Each worker gets a database, virtual host or Redis database
of its own. At the end the controller drops these databases, stops the servers of the run, and
looks for processes that were left behind.

============  ======================================================================
run.py        the run: its folder, its names, leftovers of older runs
processes.py  start, stop and find processes
private.py    a private server: start, stop, kill, start again
postgres.py   one file per service: where to look, how to start, how to make and drop
mysql.py
rabbitmq.py
redis.py
pgbouncer.py  a pooler before PostgreSQL: a program that is found or installed, and no service
galera.py     a cluster of MariaDB, likewise
catalog.py    look for a service, once per run
============  ======================================================================
"""
