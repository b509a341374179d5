"""Drives samples through a loaded variant: batches kept in flight, order and sizes restored."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hasten import runtimes
from hasten.errors import InvalidInput
from hasten.model import Model, Signature
from hasten.recipe import Recipe
from hasten.runner import cache as response_cache
from hasten.runner.assembly import Buffers, Layout, assemble, split
from hasten.runner.cache import ResponseCache
from hasten.runner.generate import Generator, open_generator
from hasten.runner.packing import Packed, assemble_packed, is_packed, split_packed
from hasten.runner.plan import Batch, RunnerSettings, plan
from hasten.runner.tokenise import Tokeniser
from hasten.runner.transcribe import Transcriber, open_transcriber
from hasten.runtimes.base import OperatorTime, Runtime, Session, Settings, language_of, speech_of
from hasten.variant import Variant
from hasten.workload import Padding

if TYPE_CHECKING:
    import numpy as np

    Sample = Mapping[str, np.ndarray]
    Outputs = dict[str, np.ndarray]


def open_runner(
    variant: Variant,
    recipe: Recipe,
    signature: Signature,
    padding: Padding | None,
    *,
    runtime: Runtime | None = None,
) -> Runner | Generator | Transcriber:
    """A runner of `variant` under `recipe` that accepts samples of the source model's `signature`.

    `runtime` replaces the one that the recipe names. Raises `InvalidInput` for settings that make no sense.
    """
    if variant.program not in ("single", "generate", "encoder_decoder"):
        raise InvalidInput(f"this version does not run the program {variant.program!r}")
    model = variant.main
    if runtime is None:
        name = recipe.runtime.get("name") or runtimes.DEFAULT_RUNTIMES.get(model.format)
        if name is None:
            raise InvalidInput(f"no runtime is known for the format {model.format!r}", "name one in [runtime]")
        runtime = runtimes.runtime(name)
    if model.format not in runtime.accepts:
        accepted = ", ".join(sorted(runtime.accepts))
        raise InvalidInput(f"runtime {runtime.name} does not load {model.format} models", f"it loads: {accepted}")
    if variant.program == "encoder_decoder":
        rules = variant.parts["tokenizer"].path
        return open_transcriber(speech_of(runtime), variant.parts, rules, recipe.runtime, recipe.runner, recipe.cache)
    if variant.program == "generate":
        language = language_of(runtime)
        return open_generator(
            language, model, variant.parts["tokenizer"].path, recipe.runtime, recipe.runner, recipe.cache
        )
    chosen, base = runtime, Settings.from_recipe(recipe.runtime)
    settings = RunnerSettings.from_recipe(recipe.runner)
    if settings.form != "batch" and padding is not None and not padding.verified:
        raise InvalidInput(f"samples cannot be padded together: {padding.reason}", 'use form = "batch"')
    packs = is_packed(model.signature)
    if packs != (settings.form == "pack"):
        what = "was packed" if packs else "was not made for packing"
        raise InvalidInput(f"the model {what}, and [runner] says otherwise", 'the step pack goes with form = "pack"')
    runner = Runner(
        lambda fixed: chosen.load(model, fixed),
        base,
        settings,
        signature,
        model.signature,
        padding,
        response_cache.from_recipe(recipe.cache, signature),
        tokeniser_of(variant.parts.get("tokenizer"), signature),
    )
    runner.load()
    return runner


class Runner:
    """Sessions of one variant, loaded at first use: one, or one for each fixed shape.

    `run` and `run_one` may be called from several threads.
    """

    def __init__(
        self,
        load: Callable[[Settings], Session],
        base: Settings,
        settings: RunnerSettings,
        source: Signature,
        variant: Signature | None = None,
        padding: Padding | None = None,
        cache: ResponseCache | None = None,
        tokeniser: Tokeniser | None = None,
    ) -> None:
        self.settings, self.padding, self.cache, self.tokeniser = settings, padding, cache, tokeniser
        self._load, self._base, self._source, self._variant = load, base, source, variant or source
        # Twice the streams: the next batches wait inside the runtime while Python finishes the last ones.
        self._in_flight = 2 * (base.streams or 1)
        self._layout: Layout | None = None
        self._sessions: dict[tuple[int, tuple[tuple[str, tuple[int, ...]], ...]] | None, Session] = {}
        self._buffers = Buffers()
        self._lock = threading.Lock()
        self._own = _numeric_types(source)

    def forget(self) -> None:
        """Forget what earlier inputs left behind, and count anew."""
        if self.cache is not None:
            self.cache.clear()

    def reused(self) -> dict[str, tuple[int, int]]:
        """How often something was used again since `forget`, of how often it could have been, by figure."""
        return {} if self.cache is None else self.cache.reused()

    def run(self, samples: Sequence[Sample]) -> list[Outputs]:
        """The outputs of each sample, in order, without batch axis and cut to the sample's own length."""
        samples = list(samples)
        if self.cache is None:
            return self._run(samples)
        return self.cache.through(samples, self._run)

    def judge(self, samples: Sequence[Sample]) -> list[Outputs]:
        """What quality is judged by: the outputs."""
        return self.run(samples)

    def run_one(self, sample: Sample) -> Outputs:
        """The outputs of one sample, as soon as possible."""
        if self.cache is not None:
            return self.run([sample])[0]
        sample = self._ready([sample])[0]
        batch, lengths = self._plan_one(sample)
        return self._run_batch([sample], batch, lengths)[0]

    def submit(self, sample: Sample) -> Future[Outputs]:
        """Start one sample and return at once; the caller bounds how many are under way."""
        found: Future[Outputs] = Future()
        if self.cache is not None:
            try:
                found.set_result(self.run_one(sample))
            except Exception as error:
                found.set_exception(error)
            return found
        sample = self._ready([sample])[0]
        batch, lengths = self._plan_one(sample)
        layout = self._known_layout([sample])
        inputs, taken = self._assemble([sample], batch, layout)

        def finish(future: Future[Outputs]) -> None:
            try:
                found.set_result(self._finish(future.result(), taken, batch, layout, lengths)[0])
            except Exception as error:
                found.set_exception(error)

        self._session(batch, inputs).submit(inputs).add_done_callback(finish)
        return found

    def load(self) -> None:
        """Load the session now, unless shapes are fixed: those are known when their samples come."""
        if not self.settings.static:
            self._session(None, {})

    def warm(self, samples: Sequence[Sample]) -> None:
        """Load every session that `samples` need, and run each shape once."""
        samples, batches, lengths = self._plan(self._ready(samples))
        seen = set()
        for batch in batches:
            shape = (batch.size, batch.length)
            if shape not in seen:
                seen.add(shape)
                self._run_batch(samples, batch, lengths)

    def operators(self, samples: Sequence[Sample], repeats: int = 10) -> list[OperatorTime]:
        """Per-operator times of the typical batch: the middle one of those that are full."""
        samples, batches, _ = self._plan(self._ready(samples))
        most = max(len(batch.indices) for batch in batches)
        full = [batch for batch in batches if len(batch.indices) == most]
        batch = full[len(full) // 2]
        inputs, _ = self._assemble(samples, batch, self._known_layout(samples))
        return self._session(batch, inputs).operators(inputs, repeats)

    def close(self) -> None:
        with self._lock:
            for session in self._sessions.values():
                session.close()
            self._sessions.clear()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, samples: list[Sample]) -> list[Outputs]:
        if not samples:
            return []
        samples, batches, lengths = self._plan(self._ready(samples))
        found: list[Outputs | None] = [None] * len(samples)
        if len(batches) == 1:
            for index, outputs in zip(batches[0].indices, self._run_batch(samples, batches[0], lengths), strict=True):
                found[index] = outputs
            return found  # type: ignore[return-value]
        # In order of start: the runtime takes batches in that order too, so the oldest is the next to be done.
        under_way: deque[tuple[Batch | Packed, Callable[[], list[Outputs]]]] = deque()

        def collect() -> None:
            batch, end = under_way.popleft()
            for index, own in zip(batch.indices, end(), strict=True):
                found[index] = own

        try:
            for batch in batches:
                if len(under_way) == self._in_flight:
                    collect()
                under_way.append((batch, self._begin(samples, batch, lengths)))
            while under_way:
                collect()
        except BaseException:
            while under_way:  # the runtime still reads their buffers
                with contextlib.suppress(Exception):
                    collect()
            raise
        return found  # type: ignore[return-value]

    def _begin(
        self, samples: Sequence[Sample], batch: Batch | Packed, lengths: Sequence[int] | None
    ) -> Callable[[], list[Outputs]]:
        layout = self._known_layout(samples)
        inputs, taken = self._assemble(samples, batch, layout)
        session = self._session(batch, inputs)
        begin = getattr(session, "begin", None)
        end = begin(inputs) if begin is not None else session.submit(inputs).result
        return lambda: self._finish(end(), taken, batch, layout, lengths)

    def _run_batch(
        self, samples: Sequence[Sample], batch: Batch | Packed, lengths: Sequence[int] | None
    ) -> list[Outputs]:
        layout = self._known_layout(samples)
        inputs, taken = self._assemble(samples, batch, layout)
        return self._finish(self._session(batch, inputs).run(inputs), taken, batch, layout, lengths)

    def _finish(
        self,
        outputs: Mapping[str, np.ndarray],
        taken: Mapping[str, np.ndarray],
        batch: Batch | Packed,
        layout: Layout,
        lengths: Sequence[int] | None,
    ) -> list[Outputs]:
        import numpy as np

        ready = {}
        for name, array in outputs.items():
            wanted = self._own.get(name)
            if wanted is not None and array.dtype != wanted and array.dtype.kind in "fiu":
                array = array.astype(wanted)
            if taken and any(np.may_share_memory(array, memory) for memory in taken.values()):
                array = array.copy()  # a runtime may hand an input back as an output
            ready[name] = array
        self._buffers.give(taken)
        if isinstance(batch, Packed):
            assert self.padding is not None
            assert lengths is not None
            return split_packed(ready, batch, lengths, self.padding)
        cuts = {}
        if batch.length is not None and lengths is not None and self._pads() is not None:
            own = [lengths[i] for i in batch.indices]
            if min(own) < batch.length:
                cuts = {name: (axis, own) for name, axis in (self.padding.outputs or {}).items()}  # type: ignore[union-attr]
        return split(ready, batch, layout, cuts)

    def _ready(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples as the model's inputs: text becomes token numbers."""
        return list(samples) if self.tokeniser is None else list(self.tokeniser(samples))

    def _assemble(
        self, samples: Sequence[Sample], batch: Batch | Packed, layout: Layout
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        if isinstance(batch, Packed):
            assert self.padding is not None
            return assemble_packed(samples, batch, self._variant, self.padding, self._buffers)
        return assemble(samples, batch, layout, self._pads(), self._buffers)

    def _pads(self) -> Padding | None:
        return self.padding if self.padding is not None and self.padding.verified else None

    def _known_layout(self, samples: Sequence[Sample]) -> Layout:
        if self._layout is None:
            self._layout = Layout.of(self._source, self._variant, samples[0])
        return self._layout

    def _plan(self, samples: list[Sample]) -> tuple[list[Sample], Sequence[Batch | Packed], list[int] | None]:
        if not samples:
            raise InvalidInput("there are no samples to run", "give at least one")
        layout = self._known_layout(samples)
        settings = self.settings
        if not layout.batched or (layout.shared and not _agree(samples, layout.shared)):
            settings = replace(settings, batch=1, batch_tokens=None)
        padding = self._pads()
        lengths: list[int] | None
        if padding is not None:
            name = next(iter(padding.values))
            lengths = [sample[name].shape[padding.axis] for sample in samples]
        else:
            lengths = _kinds(samples, layout)
        rows = layout.rows if layout.batched else 1
        return samples, plan(lengths, len(samples), settings, padding is not None, rows), lengths

    def _plan_one(self, sample: Sample) -> tuple[Batch | Packed, list[int] | None]:
        rows = self._known_layout([sample]).rows or 1
        if not self.settings.static and self.settings.form == "batch":
            return Batch((0,), None, rows), None
        _, batches, lengths = self._plan([sample])
        return batches[0], lengths

    def _session(self, batch: Batch | Packed | None, inputs: Mapping[str, np.ndarray]) -> Session:
        key = None
        if self.settings.static and batch is not None:
            key = (batch.size, tuple((name, array.shape) for name, array in inputs.items()))
        session = self._sessions.get(key)
        if session is None:
            with self._lock:
                session = self._sessions.get(key)
                if session is None:
                    shapes = None if key is None else dict(key[1])
                    session = self._sessions[key] = self._load(replace(self._base, shapes=shapes))
        return session


def tokeniser_of(part: Model | None, signature: Signature) -> Tokeniser | None:
    return None if part is None else Tokeniser(part.path, [tensor.name for tensor in signature.inputs])


def _numeric_types(signature: Signature) -> dict[str, np.dtype[Any]]:
    """NumPy's type of each output that has one."""
    import numpy as np

    return {
        tensor.name: np.dtype(tensor.dtype)
        for tensor in signature.outputs
        if tensor.dtype not in ("string", "bfloat16")
    }


def _agree(samples: Sequence[Sample], names: frozenset[str]) -> bool:
    """Whether inputs without batch axis are the same in all samples, so that they can share batches."""
    import numpy as np

    first = samples[0]
    return all(np.array_equal(sample[name], first[name]) for sample in samples for name in names)


def _kinds(samples: Sequence[Sample], layout: Layout) -> list[int] | None:
    """A number for each sample, equal for equal shapes; None where all shapes are equal."""
    numbers: dict[tuple[Any, ...], int] = {}
    kinds = [
        numbers.setdefault(tuple(sample[tensor.name].shape for tensor in layout.inputs), len(numbers))
        for sample in samples
    ]
    return kinds if len(numbers) > 1 else None
