"""Transformations of data frames: pure functions, time comes in as an argument."""
