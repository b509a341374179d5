"""How samples go through a variant: padded, sorted, bucketed and batched, with order and sizes restored."""

from hasten.runner.generate import Generator
from hasten.runner.padding import infer, verify
from hasten.runner.plan import Batch, RunnerSettings, plan
from hasten.runner.runner import Runner, open_runner
from hasten.runner.transcribe import Transcriber

__all__ = ["Batch", "Generator", "Runner", "RunnerSettings", "Transcriber", "infer", "open_runner", "plan", "verify"]
