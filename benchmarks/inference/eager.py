"""PyTorch eager in a worker: the model as the transformers library runs it, pooled by mean."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any


def open(payload: dict[str, Any], scope: Any) -> dict[str, Any]:
    """Load fp32 weights with fused attention, and warm up. `payload`: folder, samples, indices, threads, batch."""
    import torch
    import transformers

    from hasten.data import SampleSet

    logging: Any = transformers.utils.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(payload["threads"])
    samples = SampleSet.open(Path(payload["samples"]))
    model = transformers.AutoModel.from_pretrained(payload["folder"], attn_implementation="sdpa", dtype=torch.float32)
    scope.state.update(
        model=model.eval(),
        samples=samples,
        scene=[samples[i]["input_ids"] for i in payload["indices"]],
        batch=payload["batch"],
    )
    _embed(scope.state["scene"][: payload["batch"]], scope)
    return {}


def round(payload: dict[str, Any], scope: Any) -> dict[str, Any]:
    """Embed the scene once, in arrival order."""
    start = time.perf_counter()
    _embed(scope.state["scene"], scope)
    return {"seconds": time.perf_counter() - start, "count": len(scope.state["scene"])}


def outputs(payload: dict[str, Any], scope: Any) -> dict[str, Any]:
    from hasten.measure.outputs import save

    rows = _embed([scope.state["samples"][i]["input_ids"] for i in payload["indices"]], scope)
    save(Path(payload["path"]), [{"embedding": row} for row in rows])
    return {"count": len(rows)}


def _embed(texts: list[Any], scope: Any) -> list[Any]:
    import torch
    from torch.nn.utils.rnn import pad_sequence

    found: list[Any] = []
    with torch.inference_mode():
        for at in range(0, len(texts), scope.state["batch"]):
            chunk = [torch.as_tensor(ids) for ids in texts[at : at + scope.state["batch"]]]
            ids = pad_sequence(chunk, batch_first=True)
            mask = pad_sequence([torch.ones_like(each) for each in chunk], batch_first=True)
            hidden = scope.state["model"](input_ids=ids, attention_mask=mask).last_hidden_state
            weight = mask.unsqueeze(-1).to(hidden.dtype)
            found += list(((hidden * weight).sum(1) / weight.sum(1)).numpy())
    return found
