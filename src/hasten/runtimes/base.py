"""The protocol of runtimes: `load` a model under settings, `run` or `submit` batches, read `operators`, `close`.

Order of calls: hasten asks `availability` first, in any process and without importing the heavy library; `load`, and
everything on the session, happens in a worker process only. NumPy in, NumPy out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol

from hasten.errors import InvalidInput
from hasten.model import Model

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    Batch = Mapping[str, np.ndarray]


DEFAULT_RUNTIMES = {
    "onnx": "onnxruntime",
    "openvino": "openvino",
    "pt2": "torch",
    "torch": "torch",
    "gguf": "llamacpp",
    "ctranslate2": "ctranslate2",
}
"""The runtime that people who bring a format use today: what "as brought" means."""


@dataclass(frozen=True)
class Availability:
    """Whether a runtime can be used here; if not, why, and the exact command that changes it."""

    usable: bool
    reason: str = ""
    command: str = ""
    version: str = ""


@dataclass(frozen=True)
class Settings:
    """How to execute. `None` leaves the runtime's own default.

    `precision` is the inference precision ("fp32", "bf16", "fp16") of what is not quantised; `threads` is per stream;
    `streams` is how many batches run at once through `submit`; `shapes` fixes input shapes (batch axis included);
    `options` are the runtime's own keys, passed through.
    """

    precision: str | None = None
    threads: int | None = None
    streams: int | None = None
    shapes: Mapping[str, tuple[int, ...]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_recipe(cls, runtime: Mapping[str, Any]) -> Settings:
        """Read `[runtime]` of a recipe; the key `name` chooses the runtime and is not a setting."""
        known = {"precision", "threads", "streams"}
        options = {key: value for key, value in runtime.items() if key not in known | {"name"}}
        return cls(runtime.get("precision"), runtime.get("threads"), runtime.get("streams"), None, options)


def check_settings(name: str, settings: Settings, precisions: Sequence[str], options: Collection[str]) -> None:
    """Raise `InvalidInput` for a precision, a count or an option that the runtime `name` does not have."""
    if settings.precision is not None and settings.precision not in precisions:
        raise InvalidInput(
            f"runtime {name} has no precision {settings.precision!r}", f"use one of: {', '.join(precisions)}"
        )
    for key, count in (("threads", settings.threads), ("streams", settings.streams)):
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise InvalidInput(f"{key} = {count!r} makes no sense", f"give {key} as a whole number from 1 up")
    unknown = sorted(set(settings.options) - set(options))
    if unknown:
        known = ", ".join(sorted(options)) or "none"
        raise InvalidInput(f"runtime {name} has no option {', '.join(unknown)}", f"options of this runtime: {known}")


@dataclass(frozen=True)
class OperatorTime:
    """The time of one executed operator, in microseconds for one run. `executed` is the kernel or precision that the

    runtime reports having used, such as `brgemm_avx512_amx_i8`; `sources` are the model's own node or tensor names
    that were fused into it, where the runtime tells.
    """

    name: str
    kind: str
    microseconds: float
    executed: str = ""
    sources: tuple[str, ...] = ()


def fitted(times: Sequence[OperatorTime], whole_us: float) -> list[OperatorTime]:
    """`times`, the longest first, scaled down together where they add up to more than the run that they are part of."""
    inside = sum(time.microseconds for time in times)
    factor = whole_us / inside if inside > whole_us > 0 else 1.0
    scaled = [replace(time, microseconds=time.microseconds * factor) for time in times]
    return sorted(scaled, key=lambda time: -time.microseconds)


class Session(Protocol):
    """A loaded model. `run` is synchronous; `submit` returns at once and up to `streams` batches run together.

    A session may also have `begin(batch) -> Callable[[], outputs]`: like `submit`, but the caller fetches the outputs
    by calling the answer once, on a thread of its own; the runner then uses it, as it needs no thread to wake up.
    """

    def run(self, batch: Batch) -> dict[str, np.ndarray]: ...
    def submit(self, batch: Batch) -> Future[dict[str, np.ndarray]]: ...
    def operators(self, batch: Batch, repeats: int = 10) -> list[OperatorTime]: ...
    def close(self) -> None: ...


class DecoderState(Protocol):
    """Sequences under way together, with all that was fed of them.

    `feed` takes `ids` and `positions` [sequences, fed] and `mask` [sequences, everything fed so far and now], 0 where
    nothing may look. It gives logits [sequences, rows, vocabulary] of the last `rows` tokens, which the next call
    overwrites.
    """

    def feed(self, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray, rows: int) -> np.ndarray: ...
    def reset(self) -> None: ...


class Decoder(Protocol):
    """A loaded language model. `operators` are those of one decoding step after `context` [1, length]."""

    def begin(self) -> DecoderState: ...
    def operators(self, context: np.ndarray, repeats: int = 10) -> list[OperatorTime]: ...
    def close(self) -> None: ...


class Answerer(Protocol):
    """A loaded language model of a runtime that schedules whole answers itself, in place of a `Decoder`.

    `answer` decodes greedily and yields, step by step, the tokens that each prompt [length] gained: at most `most` in
    all, the first of `ends` being the last. Up to `together` prompts are under way at once; as one ends, the next
    joins. `score` gives of each text [length] what `runner.generate.losses` does: its summed negative log-likelihood
    in nats, of all tokens but the first, and how many those are. Several threads may call both, and share steps.
    """

    def answer(
        self, prompts: Sequence[np.ndarray], most: int, ends: Collection[int], together: int
    ) -> Iterator[list[list[int]]]: ...
    def score(self, texts: Sequence[np.ndarray]) -> list[tuple[float, int]]: ...
    def operators(self, context: np.ndarray, repeats: int = 10) -> list[OperatorTime]: ...
    def close(self) -> None: ...


class TextTokenizer(Protocol):
    """Text to token numbers [length] and back; `ends` are the tokens that end an answer."""

    ends: frozenset[int]

    def encode(self, text: str) -> np.ndarray: ...
    def decode(self, ids: np.ndarray) -> str: ...


class LanguageRuntime(Protocol):
    """The side of a runtime that runs language models.

    One whose `decoder` is an `Answerer` has `answers = True` (see `answers_itself`).
    """

    name: str

    def availability(self) -> Availability: ...
    def decoder(self, model: Model, settings: Settings) -> Decoder | Answerer: ...
    def tokenizer(self, path: Path) -> TextTokenizer: ...


class Hearing(Protocol):
    """Clips under way together, with the tokens of each so far.

    `hear` takes new clips [clips, samples]. `feed` takes `ids` [clips, fed], the first of which stands at `at`, and
    gives logits [clips, vocabulary], which the next call overwrites. `keep` goes on with some clips alone.
    """

    def hear(self, audio: np.ndarray) -> None: ...
    def feed(self, ids: np.ndarray, at: int) -> np.ndarray: ...
    def keep(self, rows: np.ndarray) -> None: ...


class Writing(Protocol):
    """Clips under way together in a runtime that chooses their tokens by itself.

    `hear` is that of `Hearing`. `write` gives the likeliest tokens of each clip one after another, without `prompt`
    and the end, at most `most`; those in `suppress` are never chosen, and those that may not come first are the model's
    own.
    """

    def hear(self, audio: np.ndarray) -> None: ...
    def write(self, prompt: Sequence[int], suppress: Sequence[int], most: int) -> list[list[int]]: ...


class Listener(Protocol):
    """A loaded speech model. `operators` are those of hearing clips [clips, samples]."""

    def begin(self) -> Hearing | Writing: ...
    def operators(self, audio: np.ndarray, repeats: int = 10) -> list[OperatorTime]: ...
    def close(self) -> None: ...


class SpeechRuntime(Protocol):
    """The side of a runtime that runs speech models."""

    name: str

    def availability(self) -> Availability: ...
    def listener(self, parts: Mapping[str, Model], settings: Settings) -> Listener: ...


class Runtime(Protocol):
    """An engine that executes models of the formats it accepts. Raise `InvalidInput` or `Failed` with the cause.

    `package` is the PyPI name of what provides it, where that is not its own name, and `beside` names the packages
    that it takes besides: both are what a bundle asks for. One with `probed = False` takes
    no part in measuring the device's limits.
    One that runs language models as well names its `LanguageRuntime` in `language`, as module:Class, and one that runs
    speech models its `SpeechRuntime` in `speech`. One that runs nothing else names what it runs in `programs` (see
    `runs`). One that uses other devices than the CPU has `devices()` (see `devices_of`) and the option `device`.
    """

    name: str
    accepts: frozenset[str]
    precisions: Sequence[str]

    def availability(self) -> Availability: ...
    def load(self, model: Model, settings: Settings) -> Session: ...


def runs(runtime: Runtime, program: str) -> bool:
    """Whether `runtime` is for models that are used as `program` says; one that names no programs is for any."""
    return program in getattr(runtime, "programs", (program,))


def answers_itself(language: LanguageRuntime) -> bool:
    """Whether its decoders are `Answerer`s: they schedule whole answers, and are not fed token by token."""
    return bool(getattr(language, "answers", False))


def devices_of(runtime: Runtime) -> Mapping[str, Availability]:
    """The devices beside the CPU that `runtime` knows, as its option `device` names them: usable here, or why not."""
    ask = getattr(runtime, "devices", None)
    found: Mapping[str, Availability] = {} if ask is None else ask()
    return found


def language_of(runtime: Runtime) -> LanguageRuntime:
    """The side of `runtime` that runs language models, usable here. Raises `InvalidInput` where there is none."""
    found: LanguageRuntime = _side(runtime, "language", "language models")
    return found


def speech_of(runtime: Runtime) -> SpeechRuntime:
    """The side of `runtime` that runs speech models, usable here. Raises `InvalidInput` where there is none."""
    found: SpeechRuntime = _side(runtime, "speech", "speech models")
    return found


def _side(runtime: Runtime, side: str, what: str) -> Any:
    path = getattr(runtime, side, None)
    if path is None:
        raise InvalidInput(f"runtime {runtime.name} does not run {what}", 'use name = "openvino"')
    module, _, name = path.partition(":")
    found = getattr(import_module(module), name)()
    available = found.availability()
    if not available.usable:
        raise InvalidInput(f"runtime {runtime.name}: {available.reason}", "install it", available.command)
    return found


@cache
def all_runtimes() -> Mapping[str, Runtime]:
    """Every registered runtime by name, usable here or not; a broken plugin is left out with a warning."""
    import warnings

    found: dict[str, Runtime] = {}
    for entry in entry_points(group="hasten.runtimes"):
        try:
            found[entry.name] = entry.load()()
        except Exception as error:  # a stranger's plugin must not stop the others
            warnings.warn(f"runtime plugin {entry.name} ({entry.value}) is broken: {error}", stacklevel=2)
    return found


def runtime(name: str) -> Runtime:
    """The runtime called `name`, usable here. Raises `InvalidInput` with the command that installs it."""
    known = all_runtimes()
    if name not in known:
        raise InvalidInput(f"there is no runtime called {name!r}", f"use one of: {', '.join(sorted(known))}")
    available = known[name].availability()
    if not available.usable:
        raise InvalidInput(f"runtime {name} cannot be used here: {available.reason}", "install it", available.command)
    return known[name]
