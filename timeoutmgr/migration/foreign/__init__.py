"""Timeouts of another product as a source: NServiceBus' tables, and exports of them."""
