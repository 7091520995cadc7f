"""The command line; one command a file. Heavy modules are imported inside the commands."""
