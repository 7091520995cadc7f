"""The jobs: frozen options in, a report out."""
