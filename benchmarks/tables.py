"""Rewrites the tables between markers in README.md and docs from benchmarks/results: `python -m benchmarks.tables`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, ROOT

MARKED = re.compile(r"(<!-- figures:([a-z_-]+)( brief)? -->\n).*?(<!-- /figures -->)", re.DOTALL)
PAGES = ("README.md", "benchmarks/README.md", "docs/**/*.md")
TITLES = {
    "demo.offline.speedup": "Demo CNN, throughput over ONNX Runtime's defaults",
    "demo.single_stream.speedup": "Demo CNN, latency over ONNX Runtime's defaults",
    "demo.accuracy_drop_points": "Demo CNN, accuracy lost",
    "ocr_rec.offline.speedup": "PP-OCRv4 recogniser, throughput over ONNX Runtime's defaults",
    "minilm.mixed.speedup_vs_eager": "MiniLM on texts of mixed length, throughput over PyTorch eager",
    "minilm.mixed.speedup_vs_openvino_bf16": "the same over OpenVINO bf16 in batches sorted by length",
    "minilm.mixed.speedup_vs_best_peer": "the same over the best single tool, tuned as well",
    "bucketing.minilm.gain": "Length buckets over sorted batches, MiniLM",
    "packing.minilm.gain": "Token packing over sorted batches, MiniLM",
    "rewrites.gain.attention": "MiniLM from PyTorch, read at its first token: attention as runtimes know it",
    "rewrites.gain.rows": "the same, rows that nothing reads left out",
    "rewrites.gain.embedding": "the same, embeddings summed beforehand",
    "rewrites.gain.transposes": "the same, doubled transposes and casts gone",
    "rewrites.gain.all": "the same, all four rewrites",
    "search.demo.regret": "Demo CNN, what the search leaves to the best of an exhaustive one",
    "search.minilm.regret": "MiniLM, the same",
    "search.ocr.regret": "PP-OCRv4 recogniser, the same",
    "compare.self.coverage": "Intervals that contain 1 when a model is compared with itself",
    "sensitivity.fragile.kept_speedup": "A fragile layer: share of full INT8's speed-up kept, with the accuracy",
    "awkward.models.handled": "Awkward models that are shipped with the right outputs, or refused with the reason",
    "smollm2.decode.vs_best_peer": "SmolLM2 in 4 bits, one prompt at a time, over the best tool for GGUF files",
    "smollm2.decode.fraction_of_bandwidth": "the same, share of the measured memory bandwidth",
    "smollm2.ttft_512.vs_best_peer": "the same, first token after 512",
    "smollm2.lookup.vs_best_peer": "the same, drafts on texts that repeat themselves",
    "whisper.b1.speedup_vs_eager": "Whisper tiny.en, one clip at a time, over transformers",
    "whisper.b32.speedup_vs_eager": "Whisper tiny.en, 32 clips together, over transformers",
    "whisper.b1.speedup_vs_best_peer": "Whisper tiny.en, one clip at a time, over CTranslate2 at its best",
    "whisper.b32.speedup_vs_best_peer": "Whisper tiny.en, 32 clips together, over CTranslate2 at its best",
    "whisper.quality_drop": "Whisper tiny.en, word error rate gained",
    "core.install_mb": "Core install on disk",
    "cli.help_s": "`hasten --help`",
    "parent.peak_memory_mb": "Peak memory of the parent process",
    "worker.overhead_s": "Starting a worker",
}
MODELS = {
    "minilm": "MiniLM",
    "efficientnet": "EfficientNet-Lite0",
    "ocr_rec": "PP-OCRv4 recogniser, lines of 320",
    "silero": "Silero VAD",
    "magika": "Magika",
}
SHAPES = {"b1": "one at a time", "b32": "32 at a time"}
PARTS = {
    "speedup_vs_eager": "over eager",
    "speedup_vs_best_peer": "over the best other tool",
    "fraction_of_limit": "share of the machine's rate of matrix products",
}
TITLES |= {
    f"{model}.{shape}.{part}": f"{title}, {how}, {words}"
    for model, title in MODELS.items()
    for shape, how in SHAPES.items()
    for part, words in PARTS.items()
} | {f"{model}.quality_drop": f"{title}, quality lost" for model, title in MODELS.items()}
DETAILS = frozenset(f"{model}.{shape}.{part}" for model in MODELS for shape in SHAPES for part in list(PARTS)[::2])
DETAILS |= {f"{model}.quality_drop" for model in MODELS}
"""Left out of the brief table: docs/peers.md has them, with all the tools."""
UNITS = {"x": "×", "share": "", "pt": " pt", "MB": " MB", "s": " s"}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 where a table is out of date")
    options = parser.parse_args(argv)
    stale = []
    for path in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}):
        before = path.read_text(encoding="utf-8")
        after = rewritten(before, RESULTS)
        if after != before:
            stale.append(path.relative_to(ROOT))
            if not options.check:
                path.write_text(after, encoding="utf-8")
    for path in stale:
        print(f"{path}: {'out of date: run python -m benchmarks.tables' if options.check else 'rewritten'}")
    return 1 if options.check and stale else 0


def rewritten(page: str, results: Path) -> str:
    """The page with every marked table made anew; a table whose results do not exist yet says so."""

    def fill(found: re.Match[str]) -> str:
        path = results / f"{found[2]}.json"
        if not path.is_file():
            command = f"python -m benchmarks.{found[2].partition('-')[0]}"
            missing = f"No full run has been stored yet: `{command}` makes one."
            return f"{found[1]}\n{missing}\n\n{found[4]}"
        document = json.loads(path.read_text(encoding="utf-8"))
        made = beside(document) if "rows" in document else table(document, brief=bool(found[3]))
        return f"{found[1]}\n{made}\n{found[4]}"

    return MARKED.sub(fill, page)


def table(document: Mapping[str, Any], brief: bool = False) -> str:
    """A result file as a Markdown table, with where it was taken below, and, unless `brief`, how each figure was."""
    lines = ["| | found | 95% interval | goal | |", "|---|---|---|---|---|"]
    for name, figure in document["figures"].items():
        if brief and name in DETAILS:
            continue
        met = {True: "met", False: "**not met**", None: ""}[figure["met"]]
        found, interval = "not taken", ""
        if figure["value"] is not None:
            found = f"{number(figure['value'])}{UNITS.get(figure['unit'], ' ' + figure['unit'])}"
            if figure["ci95"] is not None:
                interval = " to ".join(number(end) for end in figure["ci95"])
        goal = (figure["goal"] or "").replace(">=", "≥").replace("<=", "≤")
        lines.append(f"| {TITLES.get(name, f'`{name}`')} | {found} | {interval} | {goal} | {met} |")
    machine = document["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items() if name != "hasten")
    commits = dict.fromkeys(figure.get("commit", document["commit"]) for figure in document["figures"].values())
    at = " and ".join(f"`{commit}`" for commit in commits)
    taken = (
        f"Taken on {document['date'][:10]} at commit {at} with `python -m "
        f"benchmarks.{document['benchmark']}` on {machine['cpus']} cores of an {machine['processor']} "
        f"({', '.join(machine['instructions'])})"
    )
    if brief:
        return "\n".join([*lines, "", f"{taken}.", ""])
    lines += [
        "",
        f"{taken}; {versions}.",
        "",
        "How each was taken:",
        "",
        *(f"- `{name}`: {figure['how']}." for name, figure in document["figures"].items()),
        "",
    ]
    return "\n".join(lines)


def beside(document: Mapping[str, Any]) -> str:
    """Rows of tools as one Markdown table for each model and shape, the quickest first, and how each was set up."""
    lines = []
    groups = dict.fromkeys((row["model"], row["shape"]) for row in document["rows"])
    for model, shape in groups:
        rows = [row for row in document["rows"] if (row["model"], row["shape"]) == (model, shape)]
        rows.sort(key=lambda row: -(row["speedup"] or 0))
        lines += [f"## {model}, {shape}", "", "| | speed | quality | effort | |", "|---|---|---|---|---|"]
        for row in rows:
            speed = "" if row["speedup"] is None else f"{number(row['speedup'])}×"
            quality = "" if row["quality"] is None else f"{row['metric']} {row['quality']:.4f}"
            words = [row["settings"], "raced" if row["raced"] else ""]
            words.append(row["reason"] if row["status"] == "ran" else f"**{row['status']}**: {row['reason']}")
            said = "; ".join(filter(None, words)).replace("|", "/")
            lines.append(f"| {row['peer']} | {speed} | {quality} | {number(row['seconds'])} s | {said} |")
        lines.append("")
    lines += ["## Setting them up", ""]
    for peer, commands in {row["peer"]: row["commands"] for row in document["rows"] if row["commands"]}.items():
        lines.append(f"- {peer}: {', '.join(f'`{command}`' for command in commands)}")
    dates = " and ".join(dict.fromkeys(row["date"][:10] for row in document["rows"]))
    machine = document["machine"]
    return "\n".join([*lines, "", f"Taken on {dates} on {machine['cpus']} cores of an {machine['processor']}.", ""])


def number(value: float) -> str:
    """Three significant digits, and no more than the size of the number makes sense of.

    >>> number(5.1234), number(847.3), number(0.0512), number(0.0)
    ('5.12', '847', '0.0512', '0')
    """
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
