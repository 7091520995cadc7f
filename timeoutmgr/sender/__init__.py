"""Sending: from a call of ``send`` to the transport."""
