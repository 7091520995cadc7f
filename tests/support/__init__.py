"""Helpers of unit tests: a clock that a test moves, and ports with scripted faults."""
