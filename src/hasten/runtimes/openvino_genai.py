"""OpenVINO GenAI: runs language models with paged attention and continuous batching, so that prompts join and leave."""

from __future__ import annotations

import os
import tempfile
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, InvalidInput
from hasten.model import Model
from hasten.runtimes.base import Availability, OperatorTime, Settings, check_settings
from hasten.runtimes.openvino_decoder import OpenVinoTokenizer
from hasten.runtimes.openvino_graph import (
    OPTIONS,
    PRECISIONS,
    check_precision,
    import_openvino,
    properties,
    readable,
)

if TYPE_CHECKING:
    import numpy as np

GENAI_OPTIONS: Mapping[str, str] = {
    **{key: text for key, text in OPTIONS.items() if key not in ("hint", "mmap")},
    "max_num_batched_tokens": "how many tokens of all prompts one step takes at most (default 256)",
}
"""Keys of `[runtime]` that this runtime understands besides precision and threads."""
BATCHED_TOKENS = 256


class OpenVinoGenAi:
    """Takes decoders with their tokenizer, as OpenVINO models; language models are all it runs."""

    name = "openvino_genai"
    package = "openvino-genai"
    accepts = frozenset({"openvino"})
    precisions = tuple(PRECISIONS)
    programs = frozenset({"generate"})
    language = "hasten.runtimes.openvino_genai:OpenVinoGenAiLanguage"

    def availability(self) -> Availability:
        return OpenVinoGenAiLanguage().availability()

    def load(self, model: Model, settings: Settings) -> Any:
        raise InvalidInput("runtime openvino_genai runs language models alone", 'use name = "openvino"')


class OpenVinoGenAiLanguage:
    """OpenVINO GenAI as it runs language models: see `hasten.runtimes.base.Answerer`."""

    name = "openvino_genai"
    answers = True

    def availability(self) -> Availability:
        try:
            return Availability(True, version=version("openvino-genai"))
        except PackageNotFoundError:
            return Availability(False, "the package openvino-genai is not installed", "pip install 'hasten[llm]'")

    def decoder(self, model: Model, settings: Settings) -> OpenVinoPipeline:
        check_settings(self.name, settings, tuple(PRECISIONS), GENAI_OPTIONS)
        if settings.streams not in (None, 1):
            raise InvalidInput("openvino_genai has one stream, which all prompts share", "leave streams out, set batch")
        return OpenVinoPipeline(model, settings)

    def tokenizer(self, path: Path) -> OpenVinoTokenizer:
        return OpenVinoTokenizer(path)


class OpenVinoPipeline:
    """A compiled decoder with pages for keys and values, which several threads may use: their prompts share steps.

    Prefix caching is off, as a round's prompts would all be hits in the next. A step holds Python's lock (measured on
    2026.4): threads that do something else go on between steps.
    """

    def __init__(self, model: Model, settings: Settings) -> None:
        missing = {"input_ids", "attention_mask", "position_ids"} - {t.name for t in model.signature.inputs}
        if missing:
            raise InvalidInput(f"{model.path.name} is no decoder: it has no input {', '.join(sorted(missing))}")
        tokens = settings.options.get("max_num_batched_tokens", BATCHED_TOKENS)
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
            raise InvalidInput(f"max_num_batched_tokens = {tokens!r} makes no sense", "give a whole number from 1 up")
        ov = import_openvino()
        try:
            import openvino_genai
        except Exception as error:
            raise Failed(f"openvino_genai cannot be imported: {type(error).__name__}: {error}") from None
        device = str(settings.options.get("device", "CPU"))
        check_precision(ov.Core(), settings, device)
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = tokens
        with tempfile.TemporaryDirectory(prefix="hasten-genai-") as folder:
            # It looks for a folder with a model of this name.
            for suffix in (".xml", ".bin"):
                Path(folder, f"openvino_model{suffix}").symlink_to(model.path.with_suffix(suffix).absolute())
            try:
                self._pipeline = openvino_genai.ContinuousBatchingPipeline(
                    folder, scheduler, device, properties(settings)
                )
            except Exception as error:
                text = readable(error).replace(os.fspath(folder), model.path.name)
                raise Failed(f"openvino_genai cannot load {model.path.name}: {text}") from None
        self._lock, self._asked = threading.Lock(), 0

    def answer(
        self, prompts: Sequence[np.ndarray], most: int, ends: Collection[int], together: int
    ) -> Iterator[list[list[int]]]:
        """See `hasten.runtimes.base.Answerer`. One that is left early takes its prompts out of the pipeline."""
        waiting = deque(enumerate(prompts))
        under: dict[int, Any] = {}
        try:
            while waiting or under:
                while waiting and len(under) < together:
                    row, prompt = waiting.popleft()
                    under[row] = self._ask(prompt, ends, max_new_tokens=most)
                gained: list[list[int]] = [[] for _ in prompts]
                for row, outputs in self._step(under):
                    gained[row] += (token for output in outputs for token in output.generated_ids)
                if any(gained):
                    yield gained
        finally:
            self._leave(under)

    def score(self, texts: Sequence[np.ndarray]) -> list[tuple[float, int]]:
        """See `hasten.runtimes.base.Answerer`: the texts are echoed with their log-probabilities."""
        under = {row: self._ask(text, (), max_new_tokens=0, echo=True, logprobs=1) for row, text in enumerate(texts)}
        told: list[list[float]] = [[] for _ in texts]
        try:
            while under:
                for row, outputs in self._step(under):
                    told[row] += (value for output in outputs for value in output.generated_log_probs)
        finally:
            self._leave(under)
        for text, values in zip(texts, told, strict=True):
            if len(values) != len(text):
                raise Failed(f"openvino_genai scored {len(values)} of {len(text)} tokens")
        return [(-sum(values[1:]), len(values) - 1) for values in told]  # of the first there is no probability

    def operators(self, context: np.ndarray, repeats: int = 10) -> list[OperatorTime]:
        raise Failed("OpenVINO GenAI does not tell the times of its operators", "profile the model on openvino")

    def close(self) -> None:
        self._pipeline = None

    def _ask(self, prompt: np.ndarray, ends: Collection[int], **limits: Any) -> Any:
        """A prompt on its way, until one of `ends`."""
        import numpy as np
        import openvino_genai
        from openvino import Tensor

        stops = {int(token) for token in ends}
        # It takes no request without a token that ends a text, even where it is told to go on.
        limits |= {"eos_token_id": min(stops, default=0), "stop_token_ids": stops, "ignore_eos": not stops}
        config = openvino_genai.GenerationConfig(do_sample=False, apply_chat_template=False, **limits)
        with self._lock:
            self._asked += 1
            return self._pipeline.add_request(self._asked, Tensor(np.ascontiguousarray(prompt[None], np.int64)), config)

    def _leave(self, under: dict[int, Any]) -> None:
        """Take what is still under way out of the pipeline."""
        with self._lock:
            for handle in under.values():
                handle.cancel()

    def _step(self, under: dict[int, Any]) -> Iterator[tuple[int, list[Any]]]:
        """What has come of each prompt, after a step where nothing had; those that have ended are taken out."""
        with self._lock:
            # Another thread's step may have been for these as well.
            if not any(handle.can_read() for handle in under.values()) and self._pipeline.has_non_finished_requests():
                try:
                    self._pipeline.step()
                except Exception as error:
                    raise Failed(f"openvino_genai: {readable(error)}") from None
            ended = [row for row, handle in under.items() if handle.get_status().name != "RUNNING"]
            found = [(row, _read(handle)) for row, handle in under.items()]
        for row in ended:
            handle = under.pop(row)
            if handle.get_status().name != "FINISHED":
                raise Failed(
                    f"openvino_genai gave a prompt up: {handle.get_status().name.lower()}", "use smaller batches"
                )
        yield from found


def _read(handle: Any) -> list[Any]:
    """The outputs that wait to be read."""
    found = []
    while handle.can_read():
        found += handle.read().values()
    return found
