"""The benchmarks are no installed package: they are imported from the repository's folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
