"""The public verbs: load, profile, bench, compare, optimize, build, save, and the studies in the store.

A model is a path, `module:function`, an `nn.Module` or a fitted estimator; data is a path, `module:function`, a list of
samples or a PyTorch data loader. How both are read is said by the keywords of `Reading`, which every verb takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from hasten.errors import InvalidInput
from hasten.events import Event, OnEvent, ignore
from hasten.goal import Goal, parse_bytes, parse_seconds
from hasten.measurement import Figure, Measurement
from hasten.recipe import Recipe
from hasten.study import Study
from hasten.variant import Variant
from hasten.workload import Split, Workload

if TYPE_CHECKING:
    from hasten.bundle import LoadedBundle, LoadedGenerator, LoadedTranscriber
    from hasten.device import Device
    from hasten.diagnose.doctor import Doctor
    from hasten.diagnose.profile import Profile
    from hasten.lab.compare import Comparison
    from hasten.lab.store import Entry
    from hasten.levers import Proposal
    from hasten.search.prepare import Prepared

    OnProgress = Callable[[float | None, str], None]

AnyRecipe = str | Path | Recipe | None


class Reading(TypedDict, total=False):
    """How the model and the samples are read.

    `metric` is a name or module:function; `label` the key of the labels; `output` the output that the metric judges;
    `preprocess` module:function, or settings for images; `batch_axis` whether samples carry a batch axis (auto, yes,
    no); `weights` a state dict for a model that module:function makes; `trust` allows files that can run code when
    they are opened; `new_tokens` is how many tokens a language model answers with.
    """

    metric: str | None
    label: str | None
    output: str | None
    preprocess: str | None
    batch_axis: str
    weights: str | Path | None
    trust: bool
    new_tokens: int | None


# -- machine and model ------------------------------------------------------------------------------------------------


def doctor(refresh: bool = False) -> Doctor:
    """The device with its measured limits, and the runtimes and levers that can be used here."""
    from hasten.diagnose.doctor import doctor as examine

    return examine(refresh=refresh)


@dataclass(frozen=True)
class ProfileReport:
    """A profile and the levers to try first, best predicted gain first."""

    profile: Profile
    suggestions: tuple[Proposal, ...]
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> Sequence[Any]:
        return self.profile.rows

    def words(self) -> list[str]:
        tries = [(p.lever, p.gain.factor, p.why) for p in self.suggestions]
        return [*self.profile.words(tries), *self.notes]

    def to_json(self) -> dict[str, Any]:
        return self.profile.to_json() | {
            "words": self.words(),
            "suggestions": [
                {
                    "lever": p.lever,
                    "recipe": p.recipe.to_json(),
                    "gain": Figure(p.gain.factor, "x", f"estimated: {p.gain.source}").to_json(),
                    "why": p.why,
                }
                for p in self.suggestions
            ],
        }


def profile(
    model: Any,
    data: Any = None,
    *,
    runtime: str | None = None,
    recipe: AnyRecipe = None,
    scenario: str = "offline",
    cpus: int | None = None,
    memory: str | None = None,
    on_event: OnEvent = ignore,
    **reading: Unpack[Reading],
) -> ProfileReport:
    """Where the time goes for a model or a bundle, what bounds it, and what to try first."""
    from hasten.diagnose.profile import profile as observe
    from hasten.isolate import Limits
    from hasten.search.optimize import plan, suggest

    subject = _subject(model, data, scenario, recipe, cpus, reading, on_event)
    if subject.workload.program == "encoder_decoder":
        raise InvalidInput("a speech model cannot be profiled yet", "hasten bench tells its speed")
    used = subject.recipe.edit("runtime", name=runtime) if runtime else subject.recipe
    device = _device(cpus, on_event)
    on_event(Event("stage", "timing every operator", 0.6))
    found = observe(
        subject.variant, used, subject.workload, device, limits=Limits(_bytes(memory), 600, device.cpus or None)
    )
    planned = plan(subject.prepared, Goal(), device)
    first: dict[str, Proposal] = {}
    for proposal in suggest(planned, used, found.kinds()):
        first.setdefault(proposal.lever, proposal)
    return ProfileReport(found, tuple(first.values())[:3], subject.prepared.notes)


@dataclass(frozen=True)
class Bench:
    """What `bench` measured: the figures of one scenario, and LoadGen's verdict on the run."""

    subject: str
    scenario: str
    measurement: Measurement
    queries: int
    seconds: float
    valid: bool
    notes: tuple[str, ...]
    workload: Workload
    recipe: Recipe
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "hasten.bench/1",
            "subject": self.subject,
            "scenario": self.scenario,
            "workload": self.workload.to_json(),
            "recipe": self.recipe.to_json(),
            **self.measurement.to_json(),
            "queries": self.queries,
            "seconds": self.seconds,
            "valid": self.valid,
            "notes": list(self.notes),
        }


def bench(
    model: Any,
    data: Any = None,
    *,
    scenario: str = "single-stream",
    seconds: float = 10.0,
    target_qps: float | None = None,
    latency_bound_ms: float | None = None,
    recipe: AnyRecipe = None,
    concurrency: int | None = None,
    price: float | None = None,
    country: str | None = None,
    pue: float = 1.0,
    cpus: int | None = None,
    memory: str | None = None,
    seed: int = 0,
    on_event: OnEvent = ignore,
    **reading: Unpack[Reading],
) -> Bench:
    """Latency, throughput, memory, energy, cost and carbon of a model or a bundle in one of MLPerf's scenarios.

    `concurrency` is how many prompts of a language model are under way at once, whatever its recipe says.
    """
    from hasten.isolate import Limits, Worker
    from hasten.measure.summary import summarise_bench

    subject = _subject(model, data, scenario, recipe, cpus, reading, on_event)
    if concurrency is not None:
        subject = _at_once(subject, concurrency, scenario)
    device = _device(cpus, on_event)
    on_event(Event("stage", f"running the {scenario} scenario for {seconds:g} s", 0.3))
    payload = {
        "variant": subject.variant.to_json(),
        "recipe": subject.recipe.to_json(),
        **{name: subject.workload.to_json()["model"][name] for name in ("signature",)},
        "padding": subject.workload.to_json()["padding"],
        "samples": str(subject.workload.samples.path),
        "indices": list(range(subject.workload.samples.count)),
        "scenario": scenario,
        "seconds": seconds,
        "target_qps": target_qps,
        "latency_bound_ms": latency_bound_ms,
        "seed": seed,
    }
    tariff = _tariff(device, price, country, pue)
    with Worker(
        Limits(_bytes(memory), None, device.cpus or None), lambda share, text: on_event(Event("progress", text, share))
    ) as worker:
        raw = worker.call("hasten.measure.loadgen:bench", payload, seconds * 10 + 600)
        size = sum(part.facts.size_bytes for part in subject.variant.parts.values())
        figures = summarise_bench(raw, tariff=tariff, size_bytes=size)
    notes = (*subject.prepared.notes, *raw.get("notes", ()))
    return Bench(
        _named(model),
        scenario,
        Measurement(figures),
        raw["queries"],
        raw["seconds"],
        raw["valid"],
        notes,
        subject.workload,
        subject.recipe,
        raw,
    )


def compare(
    a: Any,
    b: Any,
    data: Any = None,
    *,
    goal: str = "throughput",
    budget: str | float = "60s",
    max_drop: str = "1%",
    recipe_a: AnyRecipe = None,
    recipe_b: AnyRecipe = None,
    price: float | None = None,
    country: str | None = None,
    cpus: int | None = None,
    memory: str | None = None,
    seed: int = 0,
    on_event: OnEvent = ignore,
    **reading: Unpack[Reading],
) -> Comparison:
    """Two models, bundles or recipes side by side in alternating rounds: the ratio with its interval, and quality."""
    from hasten.lab.compare import Subject, compare
    from hasten.lab.trial import LocalLab
    from hasten.paths import cache_dir

    wanted = Goal.parse(goal, max_drop, (), _seconds(budget))
    first = _subject(a, data, wanted.scenario, recipe_a, cpus, reading, on_event)
    second = _subject(b, data, wanted.scenario, recipe_b, cpus, reading, on_event)
    _same_signature(first.workload, second.workload)
    device = _device(cpus, on_event)
    every = tuple(range(first.workload.samples.count))  # nothing is chosen, so nothing need be kept apart
    lab = LocalLab(
        first.workload,
        wanted,
        device,
        Split(every, every, every),
        cache_dir() / "compare" / f"{first.workload.sha256[:12]}-{second.workload.sha256[:12]}",
        lambda recipe: first.variant,
        _tariff(device, price, country),
        _bytes(memory),
        seed,
        on_event,
    )
    on_event(Event("stage", "alternating rounds", 0.2))
    names = (_named(a), _named(b)) if _named(a) != _named(b) else (f"{_named(a)} (A)", f"{_named(b)} (B)")
    try:
        return compare(
            lab,
            Subject(names[0], first.recipe, first.variant),
            Subject(names[1], second.recipe, second.variant),
            wanted.budget_s,
            on_event=on_event,
        )
    finally:
        lab.close()


# -- the loop ---------------------------------------------------------------------------------------------------------


def optimize(
    model: Any,
    data: Any = None,
    *,
    goal: str = "throughput",
    max_drop: str = "1%",
    where: Sequence[str] = (),
    budget: str | float = "5m",
    out: str | Path | None = None,
    pack: bool = False,
    fallback: bool = False,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    runtime: Sequence[str] = (),
    cpus: int | None = None,
    memory: str | None = None,
    scenario: str | None = None,
    store: str | None = None,
    seed: int = 0,
    price: float | None = None,
    country: str | None = None,
    pue: float = 1.0,
    drop_outputs: Sequence[str] = (),
    on_event: OnEvent = ignore,
    **reading: Unpack[Reading],
) -> Study:
    """Run the whole loop and, with `out`, ship the winner; with `fallback` beside what won on another runtime.

    `drop_outputs` are outputs that nobody reads: what they alone need is not computed where that pays.
    Raises `GateRefused` where no variant and not even the model as brought is shown to satisfy `where`; nothing ships
    then, and the study is stored all the same.
    """
    from hasten.lab.store import Store
    from hasten.search.optimize import check_names, optimize, plan
    from hasten.search.prepare import leave_unread

    runtime = (runtime,) if isinstance(runtime, str) else tuple(runtime)
    wanted = Goal.parse(goal, max_drop, tuple(where), _seconds(budget))
    if scenario not in (None, "single-stream", "offline"):
        raise InvalidInput(
            f"optimize judges single-stream and offline, not {scenario!r}", "see the others with hasten bench"
        )
    if out is not None:
        from hasten.bundle import check_target

        check_target(Path(out), pack=pack)
    limit = _bytes(memory)
    device = _device(cpus, on_event)
    check_names(only, skip, runtime)
    prepared = leave_unread(_prepare(model, data, scenario or wanted.scenario, reading, on_event), drop_outputs)
    planned = plan(prepared, wanted, device, only=only, skip=skip, runtimes=runtime, memory_bytes=limit, seed=seed)
    database = Store(store)
    study = optimize(
        planned,
        database,
        _tariff(device, price, country, pue),
        memory_bytes=limit,
        on_event=on_event,
    )
    _gate(study)
    if out is not None and study.best is not None:
        on_event(Event("stage", "writing and verifying the bundle", 0.97))
        save(study, out, pack=pack, fallback=fallback, on_event=on_event)
    return study


def propose(
    model: Any,
    data: Any = None,
    *,
    goal: str = "throughput",
    max_drop: str = "1%",
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    runtime: Sequence[str] = (),
    scenario: str | None = None,
    cpus: int | None = None,
    drop_outputs: Sequence[str] = (),
    on_event: OnEvent = ignore,
    **reading: Unpack[Reading],
) -> list[Proposal]:
    """What `optimize` would try first and why: `--dry-run`. Runs the model as brought once, and builds nothing."""
    from hasten.search.optimize import plan, suggest
    from hasten.search.prepare import leave_unread

    wanted = Goal.parse(goal, max_drop)
    prepared = leave_unread(_prepare(model, data, scenario or wanted.scenario, reading, on_event), drop_outputs)
    return suggest(plan(prepared, wanted, _device(cpus, on_event), only=only, skip=skip, runtimes=tuple(runtime)))


def build(
    model: Any,
    recipe: str | Path | Recipe,
    out: str | Path,
    data: Any = None,
    *,
    goal: str = "throughput",
    max_drop: str = "1%",
    budget: str | float = "60s",
    pack: bool = False,
    cpus: int | None = None,
    memory: str | None = None,
    store: str | None = None,
    seed: int = 0,
    on_event: OnEvent = ignore,
    **reading: Unpack[Reading],
) -> Study:
    """Apply a known recipe, verify it beside the model as brought, and ship it.

    Raises `GateRefused` where the recipe turns out slower or worse; nothing is shipped then.
    """
    from hasten.bundle import check_target
    from hasten.errors import GateRefused
    from hasten.lab.store import Store
    from hasten.search.optimize import optimize, plan

    wanted = Goal.parse(goal, max_drop, (), _seconds(budget))
    known = recipe if isinstance(recipe, Recipe) else Recipe.read(Path(recipe))
    check_target(Path(out), pack=pack)
    prepared = _prepare(model, data, wanted.scenario, reading, on_event)
    device = _device(cpus, on_event)
    planned = plan(prepared, wanted, device, memory_bytes=_bytes(memory), seed=seed)
    planned = dataclasses.replace(
        planned, study=dataclasses.replace(planned.study, asked=known.id), levers={}, fixed=(known,)
    )
    study = optimize(planned, Store(store), _tariff(device), memory_bytes=_bytes(memory), on_event=on_event)
    if study.best is None or study.best.recipe.id != known.id:
        failed = next((t.reason for t in study.trials if t.id == known.id and t.status == "failed"), "")
        refused = GateRefused(
            f"the recipe does not hold here: {failed or study.why}", "hasten optimize looks for one that does"
        )
        refused.study = study
        raise refused
    save(study, out, pack=pack)
    return study


def save(
    study: Study, path: str | Path, *, pack: bool = False, fallback: bool = False, on_event: OnEvent = ignore
) -> Path:
    """Write the bundle of a study's best trial, reload it in a fresh process and compare its outputs.

    With `fallback`, the quickest trial that held on another runtime is inside too, for machines that lack the first;
    where every trial ran on one runtime, there is none, and an event says so.
    """
    from hasten.bundle import write
    from hasten.search.answer import fallback as second
    from hasten.search.optimize import builder_of

    best = study.best
    if best is None:
        raise InvalidInput("the study has no best trial to ship", "run hasten optimize to the end")
    builder = builder_of(study)
    other = second(study) if fallback else None
    if fallback and other is None:
        on_event(Event("note", "no fallback: everything that held ran on one runtime", None))
    beside = None if other is None else (other, builder(other.recipe))
    return write(study, best, builder(best.recipe), Path(path), pack=pack, fallback=beside)


def load(path: str | Path, *, trust: bool = False) -> LoadedBundle | LoadedGenerator | LoadedTranscriber:
    """Open a bundle after checking every hash; call it with inputs. `trust` allows a PyTorch program inside."""
    from hasten.bundle import load as open_bundle

    return open_bundle(Path(path), trust=trust)


def report(subject: Study | str | Path, out: str | Path, *, store: str | None = None) -> Path:
    """Write one self-contained HTML page about a study (or its key) or a bundle."""
    from hasten.report import render, write

    if isinstance(subject, Study):
        return write(render(subject), Path(out))
    path = Path(subject)
    if path.exists():
        from hasten.bundle import read_study

        return write(render(read_study(path)), Path(out))
    return write(render(study(str(subject), store=store)), Path(out))


# -- the store --------------------------------------------------------------------------------------------------------


def studies(store: str | None = None) -> list[Entry]:
    """A line about every study in the store, newest first."""
    from hasten.lab.store import Store

    return list(Store(store).studies())


def study(key: str, store: str | None = None) -> Study:
    """The study whose key begins with `key`."""
    from hasten.lab.store import Store

    database = Store(store)
    found = database.study(database.find(key))
    if found is None:
        raise InvalidInput(f"there is no study {key}", "see what is there", "hasten study list")
    return found


def remove_study(key: str, store: str | None = None) -> None:
    """Delete a study and its trials from the store."""
    from hasten.lab.store import Store

    database = Store(store)
    database.remove(database.find(key))


# -- common -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Subject:
    """A model or a bundle, ready to run on a workload."""

    prepared: Prepared
    recipe: Recipe
    variant: Variant

    @property
    def workload(self) -> Workload:
        return self.prepared.workload


def _subject(
    path: Any, data: Any, scenario: str, recipe: AnyRecipe, cpus: int | None, reading: Reading, on_event: OnEvent
) -> _Subject:
    """Read a model with an optional recipe, or a bundle, whose own recipe and variant count."""
    from hasten.bundle import is_bundle, read
    from hasten.search.optimize import brought_recipe, plan
    from hasten.search.prepare import Served

    if isinstance(path, str | Path) and is_bundle(Path(path)):
        if recipe is not None:
            raise InvalidInput(f"{path} is a bundle and has a recipe of its own", "leave --recipe out")
        contents = read(Path(path), trust=reading.get("trust", False))
        table = contents.manifest.get("table", {})
        served = Served(contents.variant, contents.recipe, contents.signature, contents.padding, table)
        return _Subject(_prepare(served, data, scenario, reading, on_event), contents.recipe, contents.variant)
    prepared = _prepare(path, data, scenario, reading, on_event)
    variant = prepared.workload.brought
    if recipe is None:
        return _Subject(prepared, brought_recipe(prepared), variant)
    known = recipe if isinstance(recipe, Recipe) else Recipe.read(Path(recipe))
    return _Subject(prepared, known, plan(prepared, Goal(), _device(cpus, on_event)).builder(known))


def _at_once(subject: _Subject, concurrency: int, scenario: str) -> _Subject:
    """The same with so many prompts under way at once; more than one shares no drafts."""
    if subject.variant.program != "generate" or scenario == "single-stream":
        raise InvalidInput(
            "only a language model has prompts under way together, and in single-stream there is one",
            "leave --concurrency out, or bench a language model with --scenario offline",
        )
    if concurrency < 1:
        raise InvalidInput(f"{concurrency} prompts at once make no sense", "give a whole number from 1 up")
    runner = {"batch": concurrency} | ({"lookup": None} if concurrency > 1 else {})
    return dataclasses.replace(subject, recipe=subject.recipe.edit("runner", **runner))


def _prepare(model: Any, data: Any, scenario: str, reading: Reading, on_event: OnEvent) -> Prepared:
    from hasten.search.prepare import prepare

    on_event(Event("stage", "reading the model and the samples", 0.0))
    progress: OnProgress = lambda share, text: on_event(Event("progress", text, None))  # noqa: E731
    return prepare(model, data, scenario=scenario, on_progress=progress, **reading)


def _device(cpus: int | None, on_event: OnEvent = ignore) -> Device:
    from hasten.diagnose.device import allowed_cpus, device

    allowed = allowed_cpus()
    if cpus is not None and not 1 <= cpus <= len(allowed):
        raise InvalidInput(f"{cpus} CPUs were asked for, and {len(allowed)} may be used here", "give fewer with --cpus")
    on_event(Event("stage", "measuring the limits of this machine (once, then remembered)", 0.01))
    return device(cpus=allowed[:cpus] if cpus else None)


def _tariff(device: Device, price: float | None = None, country: str | None = None, pue: float = 1.0) -> Any:
    from hasten.costs.tariff import Tariff

    return Tariff.here(device.name, max(1, len(device.cpus)), price=price, country=country, pue=pue)


def _named(model: Any) -> str:
    """What reports call a model: its path or name, and the type of one in memory."""
    return str(model) if isinstance(model, str | Path) else type(model).__name__


def _bytes(memory: str | None) -> int | None:
    return None if memory is None else parse_bytes(memory)


def _seconds(budget: str | float) -> float:
    return parse_seconds(budget) if isinstance(budget, str) else float(budget)


def _same_signature(a: Workload, b: Workload) -> None:
    def names(workload: Workload) -> list[str]:
        return sorted(t.name for t in workload.model.signature.inputs)

    if names(a) != names(b):
        raise InvalidInput(
            f"the two cannot be compared: their inputs are {', '.join(names(a))} and {', '.join(names(b))}",
            "compare variants of one model",
        )


def _gate(study: Study) -> None:
    """A bound that not even the answer satisfies is a refusal, with the nearest miss."""
    from hasten.errors import GateRefused

    best = study.best
    if best is None or not study.goal.where:
        return
    figures = best.measurement.figures
    missed = [c for c in study.goal.where if c.figure not in figures or not c.holds(figures[c.figure].value)]
    if not missed:
        return
    nearest = []
    for constraint in missed:
        values = [
            (t.measurement.figures[constraint.figure].value, t.recipe.describe())
            for t in study.trials
            if constraint.figure in t.measurement.figures
        ]
        if values:
            value, name = min(values) if constraint.op in ("<", "<=") else max(values)
            nearest.append(f"{constraint.text}: the nearest was {value:.4g} by {name}")
        else:
            nearest.append(f"{constraint.text}: the budget was too short to measure it")
    refused = GateRefused(
        "no variant satisfies " + "; ".join(nearest), "relax the bound, or allow a larger drop or budget"
    )
    refused.study = study
    raise refused
