"""Looks at a model and its samples together, before any trial: padding, lengths, repeats, and the fitting metric."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hasten.errors import HastenError, InvalidInput
from hasten.isolate import Scope
from hasten.measure.steady import look
from hasten.model import Model, Signature
from hasten.recipe import Recipe
from hasten.runtimes import Settings, runtime
from hasten.variant import Variant
from hasten.workload import Padding

PROBE_SAMPLES = 8
NEAREST_OF, SAME = 1024, 1e-6
"""So many samples tell how near they are to each other, and nearer than this is the same."""
CLASSIFY = ("accuracy", "balanced_accuracy", "f1", "precision", "recall", "top5")
MORE_SAMPLES, MORE_S = 256, 20.0
"""A metric that cannot judge a few samples (one class among them, say) is given more, within about this long."""


def prepare(payload: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """Run the model as brought on a few samples and say what the loop must know.

    `payload`: model, runtime (name), samples (path), labels (bool), metric (or None), output (or None), served (a
    bundle's variant, recipe and padding, to be run instead; or None). Returns padding, lengths (of every sample along
    the variable axis, or None), duplicates (share of samples that repeat an earlier one), metric, output, others
    (outputs that are not judged), and steady (see `measure.steady`; empty for a bundle).
    """
    import numpy as np

    from hasten.data import SampleSet
    from hasten.measure.quality import default_metric
    from hasten.runner import Runner, open_runner, padding

    model = Model.from_json(payload["model"])
    samples: Any = SampleSet.open(Path(payload["samples"]))
    few = [samples[i] for i in range(min(PROBE_SAMPLES, len(samples)))]
    scope.progress(None, "running the model as brought")
    served = payload.get("served")
    if served is None:
        recipe = Recipe(runtime={"name": payload["runtime"]}, runner={"batch": 1})
        runner = open_runner(Variant({"main": model}), recipe, model.signature, None)
    else:
        recipe, known = Recipe.from_json(served["recipe"]), Padding.from_json(served["padding"])
        runner = open_runner(Variant.from_json(served["variant"]), recipe, model.signature, known)
    assert isinstance(runner, Runner)  # language models are prepared by other means
    names = [t.name for t in model.signature.outputs]
    try:
        start = time.perf_counter()
        outputs = runner.run(few)
        seconds = (time.perf_counter() - start) / len(few)
        output = payload.get("output") or _judged(outputs[0], names, samples.labels)
        first = {name: np.asarray(value) for name, value in outputs[0].items()}
        chosen = payload.get("metric") or default_metric(
            model.signature, payload["labels"], {output: first[output]}, samples.labels
        )
        more = min(MORE_SAMPLES, len(samples), int(MORE_S / max(seconds, 1e-6)))
        judge(
            chosen,
            lambda count: outputs if count <= len(outputs) else runner.run([samples[i] for i in range(count)]),
            output,
            samples.labels,
            (len(outputs), max(more, len(outputs))),
        )
        steady = look(runner, few, outputs) if served is None else {}
    finally:
        runner.close()
    pad = known if served is not None else padding.infer(model.signature, samples)
    lengths = samples.lengths(pad.axis) if pad is not None else None
    if pad is not None and served is None:
        session = runtime(payload["runtime"]).load(model, Settings(precision="fp32"))
        try:
            pad = padding.verify(pad, session.run, samples)
        finally:
            session.close()
    return {
        "padding": None if pad is None else pad.to_json(),
        "lengths": lengths,
        "duplicates": samples.duplicates(),
        "nearest": nearest([samples[i] for i in range(min(NEAREST_OF, len(samples)))], model.signature),
        "output": output,
        "metric": chosen,
        "others": [name for name in first if name != output],
        "steady": steady,
    }


def nearest(samples: Sequence[dict[str, Any]], signature: Signature) -> list[float]:
    """How far each sample is from the nearest before it (2: there is none), sorted; repeats are left out."""
    from hasten.runner.alike import Space, vectors
    from hasten.runner.cache import as_large_as_inputs, kind_of

    sized = as_large_as_inputs(signature)
    spaces: dict[Any, Space] = {}
    found = []
    for number, sample in enumerate(samples):
        space, vector = spaces.setdefault(kind_of(sample, sized), Space()), vectors(sample)
        distance = space.nearest(vector)[1]
        if distance > SAME:
            found.append(min(distance, 2.0))
        space.add(number, vector)
    return sorted(found)


def judge(
    name: str,
    run: Callable[[int], Sequence[dict[str, Any]]],
    output: str,
    labels: Any,
    counts: tuple[int, int],
) -> None:
    """Score the model as brought: a metric that cannot judge it would fail every trial, and is better refused now.

    `run(count)` gives the outputs of the first samples; the smaller of `counts` is tried first.
    """
    import numpy as np

    from hasten.measure.choice import metric
    from hasten.measure.outputs import stacked

    known = metric(name)
    if ":" not in name and known.kind == "labels" and labels is None:
        raise InvalidInput(f"{name} needs labels, and the samples have none", "give labels, or use top1-agreement")
    for count in sorted(set(counts)):
        outputs = run(count)
        told = None if labels is None else labels[:count]
        try:
            values = stacked(outputs, output)
            score = float(known.score(values, values if known.kind == "fidelity" else told))
            if math.isfinite(score):
                break
            reason = f"it gives {score}"
        except HastenError:
            raise
        except Exception as error:  # a metric is the user's code, and may raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split()) if ":" in name else str(error)
    else:
        raise InvalidInput(
            f"the metric {name} cannot judge output {output!r} of the model as brought: {reason}",
            "choose another --metric or --output, or check the labels",
        )
    if name in CLASSIFY:
        _check_classes(np.asarray(outputs[0][output]), np.asarray(labels), output)


def _check_classes(scores: Any, labels: Any, output: str) -> None:
    """All labels, not only those that were scored, must name a class of the output."""
    if scores.ndim == 1 and scores.size > 1 and labels.dtype.kind in "iu" and labels.max() >= scores.size:
        raise InvalidInput(
            f"labels go up to {labels.max()}, and output {output!r} has {scores.size} classes, counted from 0",
            "check the labels, or choose another --output",
        )


def _judged(outputs: dict[str, Any], names: list[str], labels: Any) -> str:
    """The first floating-point output, else the first.

    Where labels are no class numbers that a score could stand for (text, or numbers beyond the scores), it is the
    output that gives a class itself.
    """
    import numpy as np

    known = {name: np.asarray(outputs[name]) for name in names if name in outputs}
    floating = [name for name, value in known.items() if value.dtype.kind == "f"]
    chosen = (floating or [*known])[0]
    wanted = None if labels is None else np.asarray(labels)
    if wanted is None or wanted.ndim != 1 or not floating:
        return chosen
    text = wanted.dtype.kind in "OU" and isinstance(wanted.flat[0], str)
    scores = known[chosen].size
    beyond = wanted.dtype.kind in "iu" and scores > 1 and not 0 <= wanted.min() <= wanted.max() < scores
    kinds = "OU" if text else "iu"
    classes = [name for name, value in known.items() if value.size == 1 and value.dtype.kind in kinds]
    return classes[0] if classes and (text or beyond) else chosen
