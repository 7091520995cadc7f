"""The parts of pipeline.py: a question each, a file each, and shared parts."""
