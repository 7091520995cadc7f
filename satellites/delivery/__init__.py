"""Delivery of due messages: send, forward, dead-letter, or move to the error queue."""
