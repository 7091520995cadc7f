"""Endpoints: configured, assembled, installed, run."""
