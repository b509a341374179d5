"""The README of a bundle: what it is, the figures with their intervals, and how to run it."""

from __future__ import annotations

from hasten.measurement import Figure, Trial
from hasten.study import Study
from hasten.view.number import short

NAMES = {
    "throughput_per_s": "throughput",
    "tokens_per_s": "tokens a second",
    "ttft_ms": "time to the first token, median",
    "tpot_ms": "time for each further token, median",
    "latency_ms.p50": "latency, median",
    "latency_ms.p90": "latency, p90",
    "latency_ms.p99": "latency, p99",
    "latency_ms.p999": "latency, p99.9",
    "peak_memory_mb": "peak memory",
    "size_mb": "model size",
    "energy_j_per_inference": "energy per inference",
    "cost_per_million": "cost per million",
    "co2e_g_per_million": "CO2e per million",
}


def readme(study: Study, trial: Trial, package: str) -> str:
    """Markdown. Figures are those of `trial`, beside the model as brought."""
    model, workload = study.workload.model, study.workload
    name = _code(model.path.name)
    taken = [(t.name, t.dtype, t.shape) for t in model.signature.inputs]
    speaks, hears = workload.program == "generate", workload.program == "encoder_decoder"
    if hears:
        taken = [(t.name, t.dtype, ("batch", "samples")) for t in workload.samples.inputs]
    elif workload.tokenizer is not None:
        taken = [(t.name, t.dtype, ("batch",)) for t in workload.samples.inputs if t.dtype == "string"]
    inputs = "\n".join(f"- input {_code(each)}: {dtype}, {_shape(shape)}" for each, dtype, shape in taken)
    words = "openvino-tokenizers" if speaks else "tokenizers"
    needs = package if workload.tokenizer is None or hears else f"{package} and {words}"
    given = (
        [("text", "string", ("batch",))]
        if speaks or hears
        else [(t.name, t.dtype, t.shape) for t in model.signature.outputs]
    )
    outputs = "\n".join(f"- output {_code(each)}: {dtype}, {_shape(shape)}" for each, dtype, shape in given)
    spoken = (
        '\n        answer = model.answer("Once upon a time", new_tokens=40)  # or model.stream(...)' if speaks else ""
    )
    if hears:
        spoken = '\n        text = model.transcribe("clip.wav")  # or python run.py clip.wav'
    title = name if trial.origin == "brought" else f"{name}, made faster by hasten"
    return f"""# {title}

{name} built by the recipe `{trial.id}` (`recipe.toml`): {_code(trial.recipe.describe() or "no change")}.
{_verdict(study, trial)}

{inputs}
{outputs}

## Run it

    pip install -r requirements.txt
    python run.py inputs.npz outputs.npz

or from Python, in this folder:

    from run import Model
    with Model() as model:
        outputs = model(inputs)     # a dict of arrays with the batch axis first, or a list of samples{spoken}

It needs Python 3.11 or newer, NumPy and {needs}; not hasten. With hasten: `hasten.load("this folder")(inputs)`.

## Figures

Taken on {_text(study.device.name)}, {len(study.device.cpus) or "?"} cores, scenario {workload.scenario}, with {
        "made-up samples" if workload.samples.kind == "synthetic" else f"{workload.samples.count:,} samples"
    }. They hold for that machine.

{_table(study, trial)}

`study.json` holds every trial with its raw rounds; `bundle.json` the SHA-256 of every file.
"""


def _verdict(study: Study, trial: Trial) -> str:
    lines = []
    if trial.origin == "brought":
        lines.append("This is the model as it was brought: nothing that hasten tried was shown to be better.")
    if trial.speedup is not None and trial.origin != "brought":
        lines.append(f"Improvement in {study.goal.optimise}: {short(trial.speedup.value)}x{_interval(trial.speedup)}.")
    quality = trial.measurement.quality
    if quality is not None:
        judged = f"on {quality.samples:,} {'labelled samples' if quality.kind == 'labels' else 'samples, as fidelity'}"
        bound = quality.bound
        most = "" if bound is None else f", with 95% confidence at most {short(bound)} {quality.drop.unit}"
        lines.append(
            f"{_text(quality.metric)}: {short(quality.value.value, 4)} {judged}, a drop of {short(quality.drop.value)} "
            f"{quality.drop.unit}{_interval(quality.drop)}{most}; {study.goal.max_drop} is allowed."
        )
    return "\n".join(lines)


def _table(study: Study, trial: Trial) -> str:
    before = study.baseline
    rows = ["| figure | this bundle | 95% interval | as brought | source |", "|---|---|---|---|---|"]
    for name, words in NAMES.items():
        figure = trial.measurement.figures.get(name)
        if figure is None:
            continue
        was = before.measurement.figures.get(name) if before is not None else None
        unit = f" {figure.unit}"
        cells = [
            words,
            short(figure.value) + unit,
            _interval(figure).strip(" ()").removeprefix("95% interval ") or "–",
            "–" if was is None else short(was.value) + unit,
            _text(figure.source),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _interval(figure: Figure) -> str:
    if figure.ci95 is None:
        return ""
    return f" (95% interval {short(figure.ci95[0])} to {short(figure.ci95[1])})"


def _shape(shape: tuple[int | str | None, ...] | None) -> str:
    return "any shape" if shape is None else "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


def _text(text: str) -> str:
    """Names come from files that are not trusted: nothing in them may become a link or a table."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in " ".join(text.split()))


def _code(text: str) -> str:
    return f"`{' '.join(text.split()).replace('`', ' ')}`"
