"""A profile as a Chrome trace: one track with the run, one with its operators laid end to end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hasten.diagnose.profile import Profile


def chrome(profile: Profile) -> dict[str, Any]:
    """Runtimes report how long operators took, not when: here they follow each other, the longest first."""
    wall = profile.wall_us.value
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": {"name": name}}
        for tid, name in ((1, "run"), (2, "operators"))
    ]
    events.append({"ph": "X", "pid": 1, "tid": 1, "name": profile.model or "run", "cat": "run", "ts": 0.0, "dur": wall})
    at = 0.0
    for row in profile.rows:
        args = {
            "kernel": row.kernel,
            "executed": row.executed,
            "bound": row.by,
            "flops": row.flops,
            "bytes": row.bytes,
            "gflops": row.gflops,
            "gb_s": row.gb_s,
            "fraction_of_roof": row.fraction,
            "sources": ", ".join(row.sources),
        }
        events.append(
            {
                "ph": "X",
                "pid": 1,
                "tid": 2,
                "name": row.name,
                "cat": row.kind,
                "ts": at,
                "dur": row.microseconds,
                "args": {name: value for name, value in args.items() if value not in (None, "")},
            }
        )
        at += row.microseconds
    return {
        "displayTimeUnit": "ms",
        "otherData": {"device": profile.device.name, "recipe": profile.recipe.describe(), "batch": profile.batch},
        "traceEvents": events,
    }
