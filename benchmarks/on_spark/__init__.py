"""The parts of pipeline.py: a question each, a file each, and what they share."""
