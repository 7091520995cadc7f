"""The jobs: each takes frozen options and returns a report."""
