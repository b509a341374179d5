"""Reads what LoadGen wrote: latencies, validity, and the notes on whether enough queries ran."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.errors import Failed

_PREFIX = ":::MLLOG "


@dataclass(frozen=True)
class Verdict:
    """LoadGen's own judgement of a run. `notes` are its sentences, on early stopping among others."""

    valid: bool
    queries: int
    notes: tuple[str, ...]
    detail: Mapping[str, Any]


def read_verdict(folder: Path) -> Verdict:
    """The judgement in `mlperf_log_detail.txt`. Raises `Failed` where LoadGen did not finish it."""
    try:
        lines = (folder / "mlperf_log_detail.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise Failed(f"LoadGen left no log: {error.strerror}") from None
    detail: dict[str, Any] = {}
    for line in lines:
        if line.startswith(_PREFIX):
            try:
                entry = json.loads(line[len(_PREFIX) :])
            except json.JSONDecodeError:  # a line that was cut off
                continue
            detail[entry["key"]] = entry["value"]
    if "result_validity" not in detail:
        raise Failed("LoadGen's log has no result: the run was cut short")
    notes = [_sentence(detail.get(key)) for key in ("result_invalid_reason", "early_stopping_result")]
    unmet = {
        "result_min_duration_met": "the run was shorter than asked",
        "result_min_queries_met": "fewer queries ran than asked",
        "result_perf_constraints_met": "the latency bound was missed",
    }
    notes += [text for key, text in unmet.items() if detail.get(key) is False]
    return Verdict(
        detail["result_validity"] == "VALID",
        int(detail.get("result_query_count", 0)),
        tuple(note for note in dict.fromkeys(notes) if note),
        detail,
    )


def read_latencies_ms(folder: Path) -> list[float]:
    """The latency of each query in the order they were issued, counted from when the query was due to start.

    From `mlperf_log_trace.json`: LoadGen's summary keeps only percentiles. A query of several samples ends with its
    last one.
    """
    ends: dict[int, int] = {}
    try:
        with open(folder / "mlperf_log_trace.json", encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.startswith('{"name":"Sample","cat"') or '"complete_ns"' not in line:
                    continue
                args = json.loads(line.rstrip().rstrip(","))["args"]
                query = args["query_seq"]
                ends[query] = max(ends.get(query, 0), args["complete_ns"])
    except (OSError, ValueError, KeyError) as error:
        raise Failed(f"LoadGen's trace cannot be read: {error}") from None
    return [ends[query] / 1e6 for query in sorted(ends)]


def _sentence(text: Any) -> str:
    """LoadGen's bullet lists as one line."""
    parts = (part.strip().rstrip(".") for part in " ".join(str(text or "").split()).split("* "))
    return "; ".join(part for part in parts if part)
