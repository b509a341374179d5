"""The thread that keeps a worker's stderr flowing, and its memory within the limit, while the parent waits."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

from hasten.isolate.memory import process_tree, resident_bytes

TAIL_BYTES = 64 << 10
SAMPLE_SECONDS = 0.02
SAMPLES_PER_TREE = 5  # looking for new children costs ten times what reading the known ones does


class Attendant:
    """Reads stderr (keeping its tail) and, given a limit, samples resident memory; owns the stderr descriptor.

    `kill` is called once, from the thread, when the limit is exceeded; `exceeded` then holds true.
    """

    def __init__(self, stderr: int, pid: int, memory_bytes: int | None, kill: Callable[[], None]) -> None:
        self.peak_bytes: int | None = None
        self.exceeded = False
        self._stderr: int | None = stderr
        self._pid, self._limit, self._kill = pid, memory_bytes, kill
        self._tree = [pid]
        self._samples = 0
        self._tail = bytearray()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        os.set_blocking(stderr, False)
        self._thread = threading.Thread(target=self._attend, name=f"hasten-worker-{pid}", daemon=True)
        self._thread.start()

    @property
    def tail(self) -> str:
        """The last of what the worker has written so far, up to `TAIL_BYTES`."""
        self._drain()
        return self._tail.decode(errors="replace")

    def end(self) -> None:
        """Stop; called when the worker is dead. A stranger that still holds its stderr cannot keep us."""
        self._drain()
        self._ended.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(1)

    def _attend(self) -> None:
        poll = select.poll()
        if self._stderr is not None:
            poll.register(self._stderr, select.POLLIN)
        # Without a limit only stderr matters, so the thread sleeps nearly always: a measurement goes on beside it.
        pause = SAMPLE_SECONDS if self._limit is not None else 0.5
        sample_at = time.monotonic()
        while not self._ended.is_set():
            if self._stderr is None:
                self._ended.wait(pause)
            elif poll.poll(pause * 1000):
                self._drain()
            if self._limit is not None and time.monotonic() >= sample_at:
                self._sample(self._limit)
                sample_at = time.monotonic() + SAMPLE_SECONDS
        with self._lock:
            self._close()

    def _sample(self, limit: int) -> None:
        if self._samples % SAMPLES_PER_TREE == 0:
            self._tree = process_tree(self._pid)
        self._samples += 1
        resident = resident_bytes(self._tree)
        self.peak_bytes = max(self.peak_bytes or 0, resident) or None
        if resident > limit and not self.exceeded:
            self.exceeded = True
            self._kill()

    def _drain(self) -> None:
        with self._lock:
            # Bounded, so that a worker which never stops writing cannot keep whoever asks for the tail.
            for _ in range(64):
                if self._stderr is None:
                    return
                try:
                    data = os.read(self._stderr, 1 << 16)
                except BlockingIOError:
                    return
                if not data:
                    self._close()
                self._tail += data
                del self._tail[:-TAIL_BYTES]

    def _close(self) -> None:
        if self._stderr is not None:
            os.close(self._stderr)
            self._stderr = None
