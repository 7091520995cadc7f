"""Version of the package: no other file states it."""

__version__ = "0.1.0"
