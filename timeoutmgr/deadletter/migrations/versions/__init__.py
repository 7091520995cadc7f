"""One file per revision, hand-written."""
