"""Other schedulers of jobs, each with the same job: a small program each.

``python -m peers.NAME accept URL COUNT DUE TALLY`` schedules COUNT jobs at the instant DUE (seconds
since 1970); ``python -m peers.NAME work …`` executes them until it is killed. A job has 512 bytes
of text and five headers, and does nothing but note that it ran.
"""
