"""Claims: which keys of due timeouts a process has reserved."""
