"""The parts of pipeline.py: one file for each question, and shared code."""
