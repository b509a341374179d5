"""OpenVINO GenAI and llama.cpp by themselves, in a worker: the tools that people run GGUF files with."""

from __future__ import annotations

import time
from typing import Any


def open(payload: dict[str, Any], scope: Any) -> dict[str, Any]:
    """Load the engine and warm it up.

    `payload`: engine ("genai" or "llama"), path (of the GGUF file), texts, new_tokens, threads (or None), lookup (the
    tokens of a draft, or 0).
    """
    start = {"genai": _genai, "llama": _llama}[payload["engine"]]
    scope.state["answer"] = start(payload)
    scope.state["texts"] = payload["texts"]
    return {"answers": [scope.state["answer"](text) for text in payload["texts"][:4]]}


def round(payload: dict[str, Any], scope: Any) -> dict[str, Any]:
    """Every text once, one after the other."""
    start = time.perf_counter()
    for text in scope.state["texts"]:
        scope.state["answer"](text)
    return {"seconds": time.perf_counter() - start, "count": len(scope.state["texts"])}


def _genai(payload: dict[str, Any]) -> Any:
    import openvino_genai as genai

    properties: dict[str, Any] = {}
    if payload["threads"]:
        properties["INFERENCE_NUM_THREADS"] = payload["threads"]
    if payload["lookup"]:
        properties["prompt_lookup"] = True
    pipeline = genai.LLMPipeline(payload["path"], "CPU", **properties)
    config = genai.GenerationConfig()
    config.max_new_tokens = payload["new_tokens"]
    config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
    if payload["lookup"]:
        config.num_assistant_tokens, config.max_ngram_size = payload["lookup"], 3
    return lambda text: str(pipeline.generate([text], config).texts[0])


def _llama(payload: dict[str, Any]) -> Any:
    from llama_cpp import Llama

    model = Llama(payload["path"], n_threads=payload["threads"], n_threads_batch=2, n_ctx=2048, verbose=False)
    end = model.token_eos()

    def answer(text: str) -> str:
        model.reset()
        tokens: list[int] = []
        model.eval(model.tokenize(text.encode(), add_bos=False))
        for number in range(payload["new_tokens"]):
            tokens.append(model.sample(temp=0.0))
            if number + 1 < payload["new_tokens"]:
                model.eval(tokens[-1:])
        return str(model.detokenize([token for token in tokens if token != end]).decode(errors="replace"))

    return answer
