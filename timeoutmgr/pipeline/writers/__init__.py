"""Writing: rows into stores, history into files."""
