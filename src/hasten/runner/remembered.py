"""Goes on from what a decoder was fed before, as far as a new text begins alike.

Instructions that prompts share, and the turns so far of a conversation, are read once.

Nothing is removed from a decoder's memory: what does not belong to the new text is masked, as drafts that were turned
down are, and once too much of it is masked the memory is cleared. The answers stay those of a fresh state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from hasten.runtimes.base import DecoderState

LEAST = 8
"""A beginning of fewer tokens is read again: that is one step, in which the others are read as well."""
MOST_MASKED = 512
"""So many masked tokens, and as many as are kept, are dragged along: they take time in every step."""


class Remembered:
    """A decoder's state for one sequence at a time, which `reset` does not empty. `kept` is what was not read again."""

    kept: int
    reused: int
    asked: int
    _begins: bool
    _filled: int
    _slots: list[int]
    """Where each token of the sequence lies in the state."""
    _tokens: list[int]
    _seen: Sequence[bool]
    """Of those, what was not turned down."""

    def __init__(self, state: DecoderState) -> None:
        self._state = state
        self.forget()

    def reset(self) -> None:
        self._begins = True

    def forget(self) -> None:
        """Keep nothing, and count anew what was not read again (`reused`) of all that was to be read (`asked`)."""
        self._clear()
        self.reused = self.asked = 0

    def feed(self, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray, rows: int) -> np.ndarray:
        """As `DecoderState.feed`, for one sequence [1, fed] from its own beginning."""
        import numpy as np

        try:
            if self._begins:
                self._begin(ids[0], rows)
                ids, positions = ids[:, self.kept :], positions[:, self.kept :]
            fed = ids.shape[1]
            self._slots += range(self._filled, self._filled + fed)
            self._filled += fed
            self._tokens += ids[0].tolist()
            self._seen = mask[0].astype(bool).tolist()
            whole = np.zeros((1, self._filled), np.int64)
            whole[0, np.array(self._slots)[np.array(self._seen)]] = 1
            return self._state.feed(ids, whole, positions, rows)
        except BaseException:
            self._clear()  # what the state holds now is not known
            raise

    def _begin(self, ids: np.ndarray, rows: int) -> None:
        """Keep of the last sequence what the new one begins with; `rows` tokens at its end must be fed in any case."""
        import numpy as np

        self._begins = False
        shown = [i for i, seen in enumerate(self._seen) if seen]
        before = np.array([self._tokens[i] for i in shown], np.int64)
        most = min(len(before), len(ids) - rows)
        differ = np.flatnonzero(before[:most] != ids[:most])
        kept = int(differ[0]) if differ.size else max(0, most)
        if kept < LEAST or self._filled - kept > MOST_MASKED + kept:
            self._clear()
            self._begins, kept = False, 0
        self.kept = kept
        self.reused += kept
        self.asked += len(ids)
        self._slots = [self._slots[i] for i in shown[:kept]]
        self._tokens = [self._tokens[i] for i in shown[:kept]]

    def _clear(self) -> None:
        self._state.reset()
        self._begins, self.kept, self._filled = True, 0, 0
        self._slots, self._tokens, self._seen = [], [], []
