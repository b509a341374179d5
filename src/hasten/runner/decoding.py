"""What runners that decode step by step share: a model loaded at first use, idle states, and threads for batches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

from hasten.runner.cache import ResponseCache


class Decoding:
    """`load` makes the model, whose `begin` makes a state for sequences that are decoded together.

    `streams` batches are decoded at once. What `run` answered is not computed again where there is a response cache.
    """

    def __init__(self, load: Callable[[], Any], streams: int, name: str, cache: ResponseCache | None = None) -> None:
        self._load, self.cache = load, cache
        self._model: Any = None
        self._idle: list[Any] = []
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max(1, streams), name)

    def forget(self) -> None:
        """Forget what earlier inputs left behind, and count anew."""
        if self.cache is not None:
            self.cache.clear()

    def reused(self) -> dict[str, tuple[int, int]]:
        """How often something was used again since `forget`, of how often it could have been, by figure."""
        return {} if self.cache is None else self.cache.reused()

    def load(self) -> None:
        self._loaded()

    def close(self) -> None:
        self._pool.shutdown()
        self._idle.clear()
        if self._model is not None:
            self._model.close()
            self._model = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _loaded(self) -> Any:
        with self._lock:
            if self._model is None:
                self._model = self._load()
            return self._model

    def _begin(self, model: Any) -> Any:
        """A new state."""
        return model.begin()

    def _lend(self) -> Lent:
        """A state that nobody uses, a new one where there is none."""
        model = self._loaded()
        with self._lock:
            state = self._idle.pop() if self._idle else self._begin(model)
        return Lent(state, self._idle)


@dataclass
class Lent:
    """A state that goes back to the idle ones."""

    state: Any
    idle: list[Any]

    def __enter__(self) -> Lent:
        return self

    def __exit__(self, *_: object) -> None:
        self.idle.append(self.state)
