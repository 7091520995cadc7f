"""The command line, with a module per command. Commands import heavy modules when they run."""
