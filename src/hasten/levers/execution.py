"""Threads and streams: how many batches run at once, and on how many cores each."""

from __future__ import annotations

from collections.abc import Iterable

from hasten.levers.base import Case, Prediction, Proposal, SettingsLever
from hasten.levers.prediction import SCHEDULES, accelerator_of, is_small, runtime_of

STREAM_PRIOR = Prediction(1.15, "prior: one-thread streams meet no barriers")
OTHER_PRIOR = Prediction(1.02, "prior: another division of the cores")
GPU_PRIOR = Prediction(1.2, "prior: copies between host and GPU beside its work")
SMALL_PRIOR = Prediction(1.25, "prior: threads wait for each other longer than a small model's operators take")


def divisions(cores: int) -> list[tuple[int, int]]:
    """Every (streams, threads) that uses all cores evenly, most streams first.

    >>> divisions(4)
    [(4, 1), (2, 2), (1, 4)]
    """
    return [(streams, cores // streams) for streams in range(cores, 0, -1) if cores % streams == 0]


class Execution(SettingsLever):
    name = "execution"
    programs = frozenset({"single", "generate", "encoder_decoder"})

    def propose(self, case: Case) -> Iterable[Proposal]:
        if accelerator_of(case.recipe):
            yield from self._on_gpu(case)
            return
        cores = max(1, len(case.device.cpus))
        runtime = case.recipe.runtime
        now = (runtime.get("streams"), runtime.get("threads"))
        if case.workload.scenario == "single-stream" or runtime_of(case) in SCHEDULES:
            choices = [(1, threads) for threads in sorted({cores, max(1, cores // 2), 1}, reverse=True)]
        else:
            choices = divisions(cores)
        for streams, threads in choices:
            if (streams, threads) == now:
                continue
            prior = STREAM_PRIOR if streams > 1 and now == (None, None) else OTHER_PRIOR
            if threads == 1 and runtime.get("threads") != 1 and is_small(case):
                prior = SMALL_PRIOR
            yield Proposal(
                case.recipe.edit("runtime", streams=streams, threads=threads),
                prior,
                _words(streams, threads),
                self.name,
            )

    def _on_gpu(self, case: Case) -> Iterable[Proposal]:
        """One batch is copied while another is computed; the cores have little to do."""
        runtime = case.recipe.runtime
        if case.workload.scenario != "single-stream" and "streams" not in runtime and not runtime.get("cuda_graph"):
            recipe = case.recipe.edit("runtime", streams=2)
            yield Proposal(recipe, GPU_PRIOR, "2 batches at once: one is copied while one is computed", self.name)


def _words(streams: int, threads: int) -> str:
    cores = f"{threads} {'core' if threads == 1 else 'cores'}"
    return f"1 batch at a time on {cores}" if streams == 1 else f"{streams} batches at once on {cores} each"
