"""Transformations of data frames: pure functions that get the time as an argument."""
