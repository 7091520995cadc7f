"""Timeouts that another product has stored: NServiceBus' tables, and exports of them."""
