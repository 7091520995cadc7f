"""Spark itself: its session, its Java, and the Python of its workers."""
