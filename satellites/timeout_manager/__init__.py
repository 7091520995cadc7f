"""The Timeout Manager: two satellites around a store of timeouts."""
