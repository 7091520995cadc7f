"""Numbers, probes and notifications of a running endpoint, for the programs that watch it."""
