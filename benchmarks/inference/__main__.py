"""`python -m benchmarks.inference [--quick] [--only NAME] [--exhaustive] [--json FILE]`."""

from __future__ import annotations

import sys

from benchmarks.common import arguments, main
from benchmarks.inference import (
    awkward,
    coverage,
    demo,
    fragile,
    minilm,
    ocr,
    regret,
    rewriting,
    smollm2,
    table,
    varying,
    whisper,
)

if __name__ == "__main__":
    modules = (demo, ocr, minilm, table, varying, rewriting, regret, coverage, fragile, awkward, smollm2, whisper)
    groups = [group for module in modules for group in module.GROUPS]
    sys.exit(main("inference", groups, arguments("inference", None, exhaustive=True)))
