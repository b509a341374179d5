"""Makes a workload from what the user hands over, and gathers what the loop must know before it starts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hasten import data as samples_of
from hasten import formats, intake
from hasten.data.audio import AS_AUDIO
from hasten.data.text import AS_TEXT, TEXT
from hasten.errors import HastenError, InvalidInput
from hasten.intake.factory import reason
from hasten.isolate import Limits, run
from hasten.measure.quality import metric as known_metric
from hasten.model import Model, Operator, Signature
from hasten.paths import cache_dir
from hasten.recipe import Recipe
from hasten.runner.generate import LOSS
from hasten.runner.packing import is_packed
from hasten.runtimes import DEFAULT_RUNTIMES
from hasten.variant import Variant
from hasten.workload import SCENARIOS, Padding, Workload

OFFLINE_BATCH, CLIPS_TOGETHER = 32, 8
GENERATION_METRIC = "text-perplexity"
SPEECH_METRIC, SPEECH_FIDELITY = "wer", "wer-to-original"
SHARING = 65
"""So many texts tell how much of them is shared."""
NEW_TOKENS = 64
"""What a language model answers with, where nothing else is asked for."""


@dataclass(frozen=True)
class Prepared:
    """A workload with the arithmetic of a typical batch, the samples' lengths and the share of repeated samples.

    `unsteady` says in what way the model answers the same sample differently each time, and is empty where it does not.
    `shared` is how much of a text is how the one before it began; `nearest` how far samples are from the nearest before
    them, sorted.
    """

    workload: Workload
    operators: tuple[Operator, ...]
    lengths: tuple[int, ...]
    duplicates: float
    notes: tuple[str, ...]
    new_tokens: int = NEW_TOKENS
    unsteady: str = ""
    shared: float = 0.0
    nearest: tuple[float, ...] = ()


@dataclass(frozen=True)
class Served:
    """What a bundle runs: its variant under its recipe, which takes and gives what `signature` says.

    `table` is how the columns of a table become its inputs, where the model as brought knew: see `intake.told`.
    """

    variant: Variant
    recipe: Recipe
    signature: Signature
    padding: Padding | None
    table: Mapping[str, Any] = field(default_factory=dict)


def prepare(
    model: Any,
    data: Any,
    *,
    scenario: str,
    metric: str | None = None,
    label: str | None = None,
    output: str | None = None,
    preprocess: str | None = None,
    batch_axis: Any = "auto",
    weights: str | Path | None = None,
    trust: bool = False,
    new_tokens: int | None = None,
    cpus: Sequence[int] | None = None,
    on_progress: Callable[[float | None, str], None] | None = None,
) -> Prepared:
    """Load the model, read the samples, verify padding, choose a metric; `InvalidInput` for whatever is wrong.

    `model` may be what a bundle serves.
    """
    if scenario not in SCENARIOS or scenario == "train":
        raise InvalidInput(f"unknown scenario {scenario!r}", f"use one of: {', '.join(SCENARIOS[:-1])}")
    if metric is not None:
        known_metric(metric)
    served = model if isinstance(model, Served) else None
    program = intake.program(model) if served is None else served.variant.program
    if new_tokens is not None and program != "generate":
        raise InvalidInput("only a language model has an answer of some length", "leave --new-tokens out")
    if new_tokens is not None and new_tokens < 1:
        raise InvalidInput(f"an answer of {new_tokens} tokens makes no sense", "give at least 1")
    if served is not None:
        loaded = replace(served.variant.main, signature=served.signature)
    else:
        reading = {"label": label, "preprocess": preprocess, "batch_axis": batch_axis}
        loaded = intake.load(model, data, weights=weights, trust=trust, reading=reading, on_progress=on_progress)
    if loaded.format not in DEFAULT_RUNTIMES:
        raise InvalidInput(f"no runtime here executes {loaded.format} models", "export the model to ONNX")
    as_brought = DEFAULT_RUNTIMES[loaded.format]
    axis: Any = batch_axis
    tokenizer = served.variant.parts.get("tokenizer") if served is not None else intake.tokenizer(model, loaded)
    if program == "generate":
        return _prepare_generation(
            loaded,
            tokenizer,
            data,
            scenario,
            metric,
            label,
            preprocess,
            new_tokens or NEW_TOKENS,
            served,
            chat=Path(model) if served is None and Path(model).is_dir() else None,
        )
    if program == "encoder_decoder":
        beside = intake.parts(model, loaded) if served is None else _beside(served.variant)
        return _prepare_speech(loaded, beside, tokenizer, data, scenario, metric, label, preprocess)
    conversion = intake.told(loaded) if served is None else served.table
    samples = samples_of.ingest(
        data,
        loaded,
        cache_dir() / "samples",
        label=label,
        preprocess=preprocess,
        batch_axis=axis,
        tokenizer=None if tokenizer is None else tokenizer.path,
        columns=conversion.get("columns"),
        missing=bool(conversion.get("missing")),
    )
    if output is not None and output not in {t.name for t in loaded.signature.outputs}:
        names = ", ".join(t.name for t in loaded.signature.outputs)
        raise InvalidInput(f"the model has no output called {output!r}", f"use one of: {names}")
    try:
        found = run(
            "hasten.measure.prepare:prepare",
            {
                "model": loaded.to_json(),
                "runtime": as_brought,
                "samples": str(samples.path),
                "labels": samples.labels,
                "metric": metric,
                "output": output,
                "served": None if served is None else served_json(served),
            },
            Limits(seconds=600, cpus=tuple(cpus) if cpus else None),
            on_progress=on_progress,
        )
    except HastenError as error:
        if samples.kind != "synthetic" or not error.cause.startswith(f"{as_brought}:"):
            raise
        raise InvalidInput(
            f"the model does not run on samples made from its signature: {error.cause}", "give real ones with --data"
        ) from None
    steady = found["steady"]
    if scenario == "offline" and steady.get("mixed"):
        raise InvalidInput(
            f"the model cannot run several samples together: {steady['mixed']}",
            "let it run one sample at a time: --goal latency, or --scenario single-stream",
        )
    texts = tokenizer is not None and any(tensor.name == "text" for tensor in samples.inputs)
    workload = Workload(
        loaded,
        samples,
        found["metric"],
        scenario,
        found["output"],
        Padding.from_json(found["padding"]),
        tokenizer if texts else None,
    )
    notes = [str(note) for note in conversion.get("notes", ())]
    if loaded.format == "torch":
        notes.append(f"the module runs as it is, and only what is exported from it can be shipped: {reason(loaded)}")
    if steady.get("chance"):
        notes.append(f"the model is not steady: {steady['chance']}")
    if steady.get("company"):
        notes.append(f"a sample's answer depends on what shares its batch: {steady['company']}")
    if found["others"] and output is None:
        others = ", ".join(found["others"][:4]) + (", ..." if len(found["others"]) > 4 else "")
        notes.append(f"quality is judged by output {found['output']} alone, not by {others}: --output names another")
    if texts:
        notes.append("samples are text: every figure includes the time to turn it into token numbers")
    if samples.kind == "synthetic":
        notes.append("no data was given: samples were made from the signature, and quality is fidelity to the model")
    elif samples.labels and metric is None and known_metric(found["metric"]).kind == "fidelity":
        notes.append(
            "the output is an embedding, which no label can be compared with: quality is fidelity to the model as "
            "brought, and --metric module:function can use the labels"
        )
    elif not samples.labels:
        notes.append("the data has no labels: quality is fidelity to the model as brought")
    if workload.padding is not None and not workload.padding.verified:
        notes.append(f"samples of different lengths are not batched together: {workload.padding.reason}")
    if samples.count < 64:
        notes.append(f"only {samples.count} samples: a small loss of quality cannot be told from none")
    packed = served is not None and is_packed(served.variant.main.signature)
    return Prepared(
        workload,
        () if packed else formats.operators(loaded, typical_shapes(workload, found["lengths"])),
        tuple(found["lengths"] or ()),
        found["duplicates"],
        tuple(notes),
        unsteady=steady.get("chance", ""),
        nearest=tuple(found["nearest"]),
    )


def leave_unread(prepared: Prepared, names: Sequence[str]) -> Prepared:
    """The same workload, of which nobody reads these outputs. `InvalidInput` where that leaves nothing to be judged."""
    workload, dropped = prepared.workload, tuple(dict.fromkeys(names))
    known = [tensor.name for tensor in workload.model.signature.outputs]
    for name in dropped:
        if workload.program != "single" or name not in known:
            raise InvalidInput(f"the model has no output called {name!r}", f"use some of: {', '.join(known)}")
        if name == workload.output:
            raise InvalidInput(
                f"quality is judged by output {name}, so it is read", "name another to judge by with --output"
            )
    if dropped and len(dropped) == len(known):
        raise InvalidInput("a model of which nobody reads any output is not needed", "leave one output in")
    return replace(prepared, workload=replace(workload, unread=dropped))


def _prepare_generation(
    model: Model,
    tokenizer: Model | None,
    data: Any,
    scenario: str,
    metric: str | None,
    label: str | None,
    preprocess: str | None,
    new_tokens: int,
    served: Served | None,
    chat: Path | None,
) -> Prepared:
    """The same for a language model: its samples are texts, to be gone on from and to be foreseen."""
    if data is None:
        raise InvalidInput("a language model needs texts of yours to be judged by", "give them with --data TEXTS.jsonl")
    if metric not in (None, GENERATION_METRIC):
        raise InvalidInput(f"a language model is judged by {GENERATION_METRIC}, not by {metric}", "leave --metric out")
    if tokenizer is None:
        raise InvalidInput(f"{model.path.name} has no tokenizer", "convert the model again")
    samples = samples_of.ingest(
        data, replace(model, signature=AS_TEXT), cache_dir() / "samples", label=label, preprocess=preprocess, chat=chat
    )
    workload = Workload(model, samples, GENERATION_METRIC, scenario, LOSS, None, tokenizer, "generate")
    if served is not None:
        new_tokens = int(served.recipe.runner.get("new_tokens", new_tokens))
    notes = [
        f"every text is gone on from with {new_tokens} tokens, chosen greedily, and not ended before",
        "quality is the perplexity of your texts: how well the model foresees them",
    ]
    if samples.count < 64:
        notes.append(f"only {samples.count} samples: a small loss of quality cannot be told from none")
    shared = shared_beginning(workload)
    if shared >= 0.1:
        notes.append(f"a text begins as the one before it did for {shared:.0%} of its length")
    return Prepared(workload, (), (), repeats(workload), tuple(notes), new_tokens=new_tokens, shared=shared)


def repeats(workload: Workload) -> float:
    """The share of samples that repeat an earlier one."""
    return samples_of.SampleSet.open(workload.samples.path).duplicates()


def beginning(a: str, b: str) -> int:
    """How many letters two texts begin with in common.

    >>> beginning("Question: who?", "Question: when?")
    12
    """
    pairs = enumerate(zip(a, b, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(a), len(b)))


def shared_beginning(workload: Workload) -> float:
    """How much of a text is, on average, how the one before it began, in the order in which they are judged."""
    found = samples_of.SampleSet.open(workload.samples.path)
    texts = [str(found[index][TEXT]) for index in workload.split(0).selection[:SHARING]]
    alike = [beginning(before, text) / len(text) for before, text in itertools.pairwise(texts) if text]
    return sum(alike) / len(alike) if alike else 0.0


def _prepare_speech(
    model: Model,
    parts: Mapping[str, Model],
    rules: Model | None,
    data: Any,
    scenario: str,
    metric: str | None,
    label: str | None,
    preprocess: str | None,
) -> Prepared:
    """The same for a speech model: its samples are clips, and its answers are what they say."""
    if data is None:
        raise InvalidInput("a speech model needs clips of yours to be judged by", "give a folder of .wav with --data")
    if rules is None:
        raise InvalidInput(f"{model.path.name} has no rules of decoding beside it", "convert the model again")
    samples = samples_of.ingest(
        data, replace(model, signature=AS_AUDIO), cache_dir() / "samples", label=label, preprocess=preprocess
    )
    if metric is None or (metric == SPEECH_METRIC and not samples.labels):
        metric = SPEECH_METRIC if samples.labels else SPEECH_FIDELITY
    elif metric not in (SPEECH_METRIC, SPEECH_FIDELITY) and ":" not in metric:
        raise InvalidInput(f"a speech model is judged by {SPEECH_METRIC}, not by {metric}", "leave --metric out")
    workload = Workload(model, samples, metric, scenario, "text", None, rules, "encoder_decoder", parts)
    notes = ["clips are written down greedily, without timestamps; one of more than 30 s in pieces"]
    if not samples.labels:
        notes.append("the clips have no transcripts: quality is fidelity to what the model as brought writes")
    if samples.count < 64:
        notes.append(f"only {samples.count} samples: a small loss of quality cannot be told from none")
    return Prepared(workload, (), (), repeats(workload), tuple(notes))


def _beside(variant: Variant) -> Mapping[str, Model]:
    return {name: part for name, part in variant.parts.items() if name not in ("main", "tokenizer")}


def served_json(served: Served) -> dict[str, Any]:
    return {
        "variant": served.variant.to_json(),
        "recipe": served.recipe.to_json(),
        "padding": None if served.padding is None else served.padding.to_json(),
    }


def typical_shapes(workload: Workload, lengths: Sequence[int] | None) -> dict[str, tuple[int, ...]]:
    """Input shapes of one typical sample with its batch axis of 1: variable axes take the median length."""
    median = sorted(lengths)[len(lengths) // 2] if lengths else 1
    sample = {t.name: t for t in workload.samples.inputs}
    shapes = {}
    for tensor in workload.model.signature.inputs:
        inner = tuple(size if isinstance(size, int) else median for size in sample[tensor.name].shape or ())
        batched = tensor.shape is not None and len(tensor.shape) == len(inner) + 1
        first = tensor.shape[0] if batched and tensor.shape else 1
        shapes[tensor.name] = (first if isinstance(first, int) else 1, *inner) if batched else inner
    return shapes
