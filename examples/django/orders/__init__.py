"""Orders, and reminders of orders that are not paid."""
