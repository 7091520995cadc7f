"""Integrations with frameworks; each needs the extra of its name."""
