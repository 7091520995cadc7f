"""Endpoints: their configuration, assembly, installation and run."""
