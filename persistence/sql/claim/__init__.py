"""Claims: reservations of keys of due timeouts by a process."""
