"""Recurring timeouts: a schedule in the configuration, and the run that is stored ahead."""
