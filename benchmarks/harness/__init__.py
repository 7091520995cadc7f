"""What the programs of this folder share: servers, workers, interleaved runs, tables."""

import sys
from pathlib import Path

# The tests' way to find servers, and to make and drop what is ours on them, serves here too.
sys.path.append(str(Path(__file__).parents[2]))
