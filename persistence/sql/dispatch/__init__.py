"""Dispatch: rows locked, sent, and closed with their outcome."""
