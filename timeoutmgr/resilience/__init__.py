"""Reactions to failures: breakers over time, recoverability, critical errors."""
