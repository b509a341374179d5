"""A workload: a model, its samples, its metric and its scenario: the thing being accelerated."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from hasten.model import Model, Tensor
from hasten.variant import Program, Variant

SCENARIOS = ("single-stream", "multi-stream", "server", "offline", "train")
Kind = Literal["data", "synthetic"]


@dataclass(frozen=True)
class Samples:
    """A handle on samples that were read, checked and written to `path` in hasten's own form.

    `inputs` describes one sample, without batch axis; a size that differs between samples is None. `kind` is
    "synthetic" where hasten made the samples from the signature. `labels` says whether each sample has one.
    """

    path: Path
    sha256: str
    count: int
    inputs: tuple[Tensor, ...]
    kind: Kind
    labels: bool
    origin: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"path": str(self.path)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Samples:
        return cls(
            Path(data["path"]),
            data["sha256"],
            data["count"],
            tuple(Tensor.from_json(t) for t in data["inputs"]),
            data["kind"],
            data["labels"],
            data.get("origin", ""),
        )


@dataclass(frozen=True)
class Split:
    """Disjoint sample indices: to calibrate with, to choose with, and to confirm the choice with."""

    calibration: tuple[int, ...]
    selection: tuple[int, ...]
    verification: tuple[int, ...]


@dataclass(frozen=True)
class Padding:
    """How samples of different lengths become one batch.

    `values` maps an input to the number it is padded with; `axis` is the variable axis of a sample (without batch
    axis). `verified` says that running samples padded gave the outputs of running them alone; where it is False,
    `reason` says why, and samples of different lengths are never put into one batch. `outputs` maps an output that
    carries the variable axis to that axis (of a sample), so that it is cut back to the sample's own length.
    """

    values: Mapping[str, float]
    axis: int
    verified: bool
    reason: str = ""
    outputs: Mapping[str, int] | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> Padding | None:
        return None if data is None else cls(**data)


@dataclass(frozen=True)
class Metric:
    """A quality metric. `score(outputs, labels)` takes ordered NumPy outputs (first axis: samples) and labels;

    `per_sample`, where the score is a mean over samples, gives each sample's share, so that the bootstrap need not
    recompute `score`.
    """

    name: str
    higher_is_better: bool
    score: Callable[[Any, Any], float]
    per_sample: Callable[[Any, Any], Any] | None = None
    kind: Literal["labels", "fidelity"] = "labels"


@dataclass(frozen=True)
class Workload:
    """The thing being accelerated. `metric` is a name or `module:function`; `output` names the output it judges.

    `tokenizer`, where samples are text, turns it into the model's inputs; samples hold both then. `parts` are those of
    the model beside `model`, its main one, and a speech model's `tokenizer` holds its rules of decoding. `unread` are
    outputs that nobody reads, as the user says: a variant need not have them.
    """

    model: Model
    samples: Samples
    metric: str
    scenario: str
    output: str | None = None
    padding: Padding | None = None
    tokenizer: Model | None = None
    program: Program = "single"
    parts: Mapping[str, Model] = field(default_factory=dict)
    unread: tuple[str, ...] = ()

    @property
    def brought(self) -> Variant:
        """The variant that was brought."""
        words = {} if self.tokenizer is None else {"tokenizer": self.tokenizer}
        return Variant({"main": self.model, **self.parts, **words}, self.program)

    @property
    def sha256(self) -> str:
        tokenizer = None if self.tokenizer is None else self.tokenizer.sha256
        parts = [self.model.sha256, self.samples.sha256, self.metric, self.scenario, self.output, tokenizer]
        parts += [part.sha256 for _, part in sorted(self.parts.items())]
        parts += self.unread
        text = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def split(self, seed: int = 0) -> Split:
        """Shuffle with `seed`: a tenth calibrates and a quarter chooses (less of many samples), the rest confirms.

        Confirming gets most because showing that nothing was lost takes the most samples. With fewer than four samples
        there is nothing to set aside: all take part in everything, and no quality verdict is better than "undecided".
        """
        order = list(range(self.samples.count))
        if len(order) < 4:
            return Split(tuple(order), tuple(order), tuple(order))
        random.Random(seed).shuffle(order)
        calibration = max(1, min(len(order) // 10, max(100, len(order) // 20), 300))
        middle = calibration + max(1, min(len(order) // 4, max(150, len(order) * 3 // 40)))
        return Split(tuple(order[:calibration]), tuple(order[calibration:middle]), tuple(order[middle:]))

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model.to_json(),
            "data": self.samples.to_json(),
            "metric": self.metric,
            "scenario": self.scenario,
            "output": self.output,
            "padding": None if self.padding is None else self.padding.to_json(),
            "tokenizer": None if self.tokenizer is None else self.tokenizer.to_json(),
            "program": self.program,
            "parts": {name: part.to_json() for name, part in self.parts.items()},
            "unread": list(self.unread),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Workload:
        return cls(
            Model.from_json(data["model"]),
            Samples.from_json(data["data"]),
            data["metric"],
            data["scenario"],
            data.get("output"),
            Padding.from_json(data.get("padding")),
            None if data.get("tokenizer") is None else Model.from_json(data["tokenizer"]),
            data.get("program", "single"),
            {name: Model.from_json(part) for name, part in data.get("parts", {}).items()},
            tuple(data.get("unread", ())),
        )
