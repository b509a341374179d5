"""`python -m benchmarks.inference [--quick] [--only NAME] [--exhaustive] [--json FILE]`."""

from __future__ import annotations

import sys

from benchmarks.common import arguments, main
from benchmarks.inference import coverage, demo, fragile, minilm, ocr, regret

if __name__ == "__main__":
    groups = [*demo.GROUPS, *ocr.GROUPS, *minilm.GROUPS, *regret.GROUPS, *coverage.GROUPS, *fragile.GROUPS]
    sys.exit(main("inference", groups, arguments("inference", None, exhaustive=True)))
