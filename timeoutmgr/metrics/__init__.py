"""Metrics, probes and notifications of a running endpoint, for monitoring."""
