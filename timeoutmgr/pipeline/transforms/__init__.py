"""Transformations of data frames: pure functions, which get the time as an argument."""
