"""The profile of a variant: where the time goes, what bounds it, and the best that this device could do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hasten.device import Device
from hasten.diagnose.decoding import rated, reading
from hasten.diagnose.join import coverage, join
from hasten.diagnose.kinds import UNRATED
from hasten.diagnose.observe import SPEND_S
from hasten.diagnose.roofline import PRECISIONS, best_us, roofs
from hasten.diagnose.rows import OperatorRow, rows
from hasten.errors import InvalidInput
from hasten.isolate import Limits, Worker
from hasten.measure.energy import kind_of
from hasten.measurement import Figure
from hasten.model import Operator
from hasten.recipe import Recipe
from hasten.runtimes.base import OperatorTime, fitted
from hasten.variant import Variant
from hasten.workload import Workload

SCHEMA = "hasten.profile/1"
BOUNDS = ("compute", "memory", "overhead", "io")
ABOVE = 1.15
"""A fraction of the roof that no noise of one operator's time explains."""
SYNTHETIC = "the samples were made from the signature, so times of data-dependent operators may differ"


@dataclass(frozen=True)
class Profile:
    """Where the time of one run of a typical batch goes.

    `wall_us` is the batch through the runner: `session_us` in the runtime and the rest padding, stacking and cutting
    ("io"). `shares` of the wall time by class add up to 1: "compute", "memory", "overhead" (small operators, and what
    the runtime spends between operators), "io" and "unknown" (operators that could not be matched). `bound` is the
    largest of the first four. `best_us` maps a precision to the least time of a batch on this device. `device_share` is
    the part of the device's cores that one stream has, by which the roofs were scaled. `what` a run is of: samples, or
    the tokens of a language model.
    """

    rows: tuple[OperatorRow, ...]
    wall_us: Figure
    session_us: Figure
    shares: Mapping[str, float]
    bound: str
    best_us: Mapping[str, Figure]
    batch: int
    shapes: Mapping[str, tuple[int, ...]]
    recipe: Recipe
    device: Device
    device_share: float = 1.0
    coverage: float = 1.0
    notes: tuple[str, ...] = ()
    model: str = ""
    operators: tuple[Operator, ...] = field(default=(), repr=False)
    what: str = "sample"

    def kinds(self) -> dict[str, float]:
        """The share of the wall time by operator kind, the largest first; "overhead" and "io" are what is between."""
        found: dict[str, float] = {}
        for row in self.rows:
            found[row.kind] = found.get(row.kind, 0.0) + row.share
        inside = sum(found.values())
        io = self.shares.get("io", 0.0)
        found["overhead"] = max(0.0, 1.0 - inside - io)
        found["io"] = io
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def words(self, tries: Sequence[tuple[str, float, str]] = ()) -> tuple[str, ...]:
        """Plain sentences; `tries` are (lever, predicted gain, why) of what to try first, which the caller knows."""
        from hasten.diagnose.words import sentences

        return sentences(self, tries)

    def to_chrome_trace(self) -> dict[str, Any]:
        """The run in Chrome's trace format, for chrome://tracing and ui.perfetto.dev."""
        from hasten.diagnose.trace import chrome

        return chrome(self)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "model": self.model,
            "recipe": self.recipe.to_json(),
            "device": self.device.to_json(),
            "device_share": self.device_share,
            "batch": self.batch,
            "what": self.what,
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "wall_us": self.wall_us.to_json(),
            "session_us": self.session_us.to_json(),
            "bound": self.bound,
            "shares": dict(self.shares),
            "kinds": self.kinds(),
            "best_us": {name: figure.to_json() for name, figure in self.best_us.items()},
            "coverage": self.coverage,
            "rows": [row.to_json() for row in self.rows],
            "operators": [asdict(operator) for operator in self.operators],
            "words": list(self.words()),
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Profile:
        if data.get("schema") != SCHEMA:
            raise InvalidInput(f"this is not a profile: its schema is {data.get('schema')!r}", f"expected {SCHEMA}")
        return cls(
            tuple(OperatorRow.from_json(row) for row in data["rows"]),
            Figure.from_json(data["wall_us"]),
            Figure.from_json(data["session_us"]),
            dict(data["shares"]),
            data["bound"],
            {name: Figure.from_json(figure) for name, figure in data["best_us"].items()},
            data["batch"],
            {name: tuple(shape) for name, shape in data["shapes"].items()},
            Recipe.from_json(data["recipe"]),
            Device.from_json(data["device"]),
            data["device_share"],
            data["coverage"],
            tuple(data["notes"]),
            data["model"],
            tuple(Operator.from_json(operator) for operator in data["operators"]),
            data.get("what", "sample"),
        )


@dataclass(frozen=True)
class Observation:
    """What a worker saw: operator times of one batch, and the time of that batch whole and in the session alone."""

    times: tuple[OperatorTime, ...]
    wall_us: Figure
    session_us: Figure
    batch: int
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Observation:
        return cls(
            tuple(OperatorTime(**time | {"sources": tuple(time["sources"])}) for time in data["times"]),
            Figure.from_json(data["wall_us"]),
            Figure.from_json(data["session_us"]),
            data["batch"],
            {name: tuple(shape) for name, shape in data["shapes"].items()},
        )


def build(
    seen: Observation,
    operators: Sequence[Operator],
    recipe: Recipe,
    device: Device,
    *,
    notes: Sequence[str] = (),
    model: str = "",
) -> Profile:
    """Join what was seen with the model's arithmetic and class it. Pure.

    Counters slow every operator a little, so their times are scaled down to fill no more than a plain run.
    """
    share = stream_share(recipe, device)
    limits = roofs(device, share)
    joined = join(fitted(seen.times, seen.session_us.value), operators)
    rated = rows(joined, seen.wall_us.value, limits)
    shares = classes(rated, seen.wall_us.value, seen.session_us.value)
    found = coverage(joined, operators) if operators else 0.0
    rateable = not any(operator.kind in UNRATED for operator in operators)
    best = {
        precision: Figure(least, "us", f"estimated: roofline, {len(operators)} operators, element-wise ones fused")
        for precision in PRECISIONS
        if operators and rateable and (least := best_us(operators, precision, limits)) is not None
    }
    warned = list(notes)
    if operators and found < 0.8:
        warned.append(
            f"only {found:.0%} of the model's arithmetic could be found in the runtime's list of operators; "
            "rates of the others are not known"
        )
    above = sum(row.share for row in rated if row.by == "compute" and (row.fraction or 0.0) > ABOVE)
    if above > 0.2:
        warned.append(
            f"operators with {above:.0%} of the time are faster than the limits that were measured here, so those were "
            "taken while the machine was busy: measure them again with hasten doctor --refresh"
        )
    return Profile(
        rated,
        seen.wall_us,
        seen.session_us,
        shares,
        max(BOUNDS, key=lambda name: shares[name]),
        best,
        seen.batch,
        seen.shapes,
        recipe,
        device,
        share,
        found,
        tuple(warned),
        model,
        tuple(operators),
    )


def classes(rated: Sequence[OperatorRow], wall_us: float, session_us: float) -> dict[str, float]:
    """The share of the wall time in each class; what is inside the session but in no operator is overhead."""
    inside = sum(row.microseconds for row in rated)
    whole = max(wall_us, inside)
    if whole <= 0:
        return dict.fromkeys((*BOUNDS, "unknown"), 0.0) | {"overhead": 1.0}
    found = dict.fromkeys((*BOUNDS, "unknown"), 0.0)
    for row in rated:
        found[row.by] += row.microseconds / whole
    # A profiled run is a little slower than a timed one: whatever its operators do not fill is split between the two.
    left = max(0.0, whole - inside)
    io = min(left, max(0.0, wall_us - session_us))
    found["io"] = io / whole
    found["overhead"] += (left - io) / whole
    return found


def stream_share(recipe: Recipe, device: Device) -> float:
    """The part of the device's cores that one stream has under `recipe`."""
    cores = max(1, len(device.cpus))
    threads, streams = recipe.runtime.get("threads"), recipe.runtime.get("streams")
    if threads:
        return min(1.0, int(threads) / cores)
    return 1.0 / min(cores, max(1, int(streams or 1)))


def profile(
    variant: Variant,
    recipe: Recipe,
    workload: Workload,
    device: Device,
    *,
    samples_limit: int = 64,
    limits: Limits | None = None,
    seed: int = 0,
    spend_s: float = SPEND_S,
) -> Profile:
    """Run a typical batch of `workload` through `variant` in a worker, and say where its time went.

    At most `samples_limit` samples are looked at, for about three times `spend_s` seconds. Raises `WorkerFailed` when
    the worker dies, and what the runtime raises when it cannot load the model.
    """
    from hasten.formats import operators as operators_of

    with Worker(limits or Limits(cpus=device.cpus or None, seconds=300)) as worker:
        answer = worker.call(
            "hasten.diagnose.observe:observe",
            {
                "variant": variant.to_json(),
                "recipe": recipe.to_json(),
                "workload": workload.to_json(),
                "samples_limit": samples_limit,
                "seed": seed,
                "spend_s": spend_s,
            },
        )
    seen = Observation.from_json(answer)
    if kind_of(recipe) == "gpu":
        device = replace(device, limits={})  # they are the processor's
    notes = [SYNTHETIC] if workload.samples.kind == "synthetic" else []
    if workload.program == "generate":
        notes += reading(variant.main.facts.size_bytes, seen.session_us.value, device)
        found = build(seen, (), recipe, device, notes=notes, model=variant.main.path.name)
        known = rated(found.rows)
        shares = classes(known, seen.wall_us.value, seen.session_us.value)
        return replace(found, rows=known, shares=shares, bound=max(BOUNDS, key=lambda name: shares[name]), what="token")
    try:
        arithmetic = operators_of(variant.main, seen.shapes)
    except InvalidInput as error:
        arithmetic = ()
        notes.append(f"the model's arithmetic is not known: {error.cause}")
    return build(seen, arithmetic, recipe, device, notes=notes, model=variant.main.path.name)
