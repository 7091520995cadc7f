"""The jobs of the pipeline: each takes frozen options and returns a report."""
