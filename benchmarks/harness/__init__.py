"""Shared parts of the benchmarks: servers, workers, interleaved runs, tables."""

import sys
from pathlib import Path

# tests.services finds servers, and creates and drops our databases on them.
sys.path.append(str(Path(__file__).parents[2]))
