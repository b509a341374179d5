"""Where the figures were taken, on what they stand, and how to take them again."""

from __future__ import annotations

from hasten.measurement import Figure
from hasten.report.html import Markup, el
from hasten.report.words import interval, say
from hasten.study import Study

LIMITS = {
    "gemm_fp32_gflops": "GEMM, fp32",
    "gemm_bf16_gflops": "GEMM, bf16",
    "gemm_fp16_gflops": "GEMM, fp16",
    "gemm_int8_gops": "GEMM, int8",
    "read_gb_s": "Memory, read",
    "copy_gb_s": "Memory, copy",
    "cache_gb_s": "Cache, read",
    "dispatch_us": "Smallest run",
    "operator_us": "Smallest operator",
}


def size_of(number_of_bytes: int) -> str:
    value, unit = float(number_of_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.4g} {unit}"


def environment(study: Study) -> Markup:
    device, workload = study.device, study.workload
    machine = [("Device", device.name), ("Kind", device.kind)]
    if device.accelerators:
        machine.append(("GPU", ", ".join(device.accelerators)))
    if device.cpus:
        machine.append(("Cores", f"{len(device.cpus)} ({', '.join(map(str, device.cpus))})"))
    if device.memory_bytes:
        machine.append(("Memory", size_of(device.memory_bytes)))
    machine += [(name, size_of(size)) for name, size in device.caches_bytes.items()]
    if device.flags:
        machine.append(("Instructions", ", ".join(device.flags)))
    limits = [(LIMITS.get(name, name), _limit(figure)) for name, figure in device.limits.items()]
    work = [
        ("Model", workload.model.path.name),
        ("sha256", workload.model.sha256[:16]),
        ("Samples", f"{workload.samples.count:,}" + (" (synthetic)" if workload.samples.kind == "synthetic" else "")),
        ("Scenario", workload.scenario),
        ("Metric", workload.metric),
        ("Goal", f"{study.goal.optimise}, at most {study.goal.max_drop} lost"),
        *(("Where", constraint.text) for constraint in study.goal.where),
        ("Seed", str(study.seed)),
    ]
    groups = [
        ("Work", work),
        ("Device", machine),
        ("Measured limits", limits),
        ("Versions", sorted(study.versions.items())),
    ]
    return el("div", [_group(title, rows) for title, rows in groups if rows], class_="facts")


def _limit(figure: Figure) -> str:
    spread = interval(figure)
    return f"{say(figure)} ({spread})" if spread else say(figure)


def _group(title: str, rows: list[tuple[str, str]]) -> Markup:
    return el("div", el("h3", title), el("dl", [(el("dt", name), el("dd", value)) for name, value in rows]))


def reproduce(study: Study) -> Markup | None:
    best = study.best
    if best is None:
        return None
    name = _quoted(study.workload.model.path.name)
    goal = study.goal
    optimize = f"hasten optimize {name} --data DATA --metric {_quoted(study.workload.metric)} --goal {goal.optimise}"
    optimize += f" --max-drop {goal.max_drop}"
    optimize += "".join(f" --where '{constraint.text}'" for constraint in goal.where)
    optimize += f" --budget {goal.budget_s:g}s"
    if study.seed:
        optimize += f" --seed {study.seed}"
    toml = best.recipe.to_toml().strip() or "# the model as it was brought: nothing to change"
    return el(
        "div",
        el("figure", el("figcaption", "recipe.toml"), el("pre", toml)),
        el(
            "figure",
            el("figcaption", "build exactly this"),
            el("pre", f"hasten build {name} --recipe recipe.toml --out bundle"),
            el("figcaption", "search again"),
            el("pre", optimize),
        ),
        class_="reproduce",
    )


def _quoted(text: str) -> str:
    import shlex

    return shlex.quote(text)
