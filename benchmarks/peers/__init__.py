"""Other job schedulers: a small program for each, with the same job.

``python -m peers.NAME accept URL COUNT DUE TALLY`` schedules COUNT jobs at the instant DUE (seconds
since 1970); ``python -m peers.NAME work …`` executes them until it is killed. A job has 512 bytes
of text and five headers, and only records that it ran.
"""
