"""Recurring timeouts: schedules in the configuration, whose next run is stored ahead."""
