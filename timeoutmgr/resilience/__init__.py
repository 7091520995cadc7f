"""Reactions to failures: circuit breakers, recoverability, critical errors."""
