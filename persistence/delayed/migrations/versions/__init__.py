"""The revisions, written by hand."""
