"""Transformers and CTranslate2 by themselves, in a worker: the tools that people run Whisper with.

CTranslate2 is what faster-whisper decodes with; it is put into a folder of its own, which only its workers look into.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.common import downloads
from benchmarks.fetch import fetch
from benchmarks.inference.whisper_model import MODEL, SETTINGS, TOKENIZER, VOCABULARY
from hasten.errors import Failed

CTRANSLATE2 = "ctranslate2==4.8.0"
PROMPT = [50257, 50362]
END = 50256


def installed() -> Path:
    """The folder that CTranslate2 is in, filled at first use."""
    folder = downloads() / CTRANSLATE2.replace("==", "-")
    if not (folder / "ctranslate2").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), CTRANSLATE2]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"{CTRANSLATE2} could not be installed: {done.stderr.strip()[-200:]}", "check the network")
    return folder


def model() -> Path:
    """CTranslate2's own files of the model, in one folder."""
    return [fetch(each) for each in (TOKENIZER, SETTINGS, VOCABULARY, MODEL)][-1].parent


def open(payload: dict[str, Any], scope: Any) -> dict[str, Any]:
    """Load the engine and warm it up.

    `payload`: engine ("eager" or "ctranslate2"), folder (of transformers' files), samples (path), indices, batch,
    threads, and for ctranslate2 also site (where it is installed), model (its files), kind (int8 or float32).
    """
    import transformers

    from hasten.data import SampleSet

    transformers.logging.set_verbosity_error()
    samples = SampleSet.open(Path(payload["samples"]))
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(payload["folder"], local_files_only=True)
    start = {"eager": _eager, "ctranslate2": _ctranslate2}[payload["engine"]]
    scope.state.update(
        answer=start(payload, extractor),
        clips=[samples[i]["audio"] for i in payload["indices"]],
        batch=payload["batch"],
    )
    return {"answers": scope.state["answer"](scope.state["clips"][: payload["batch"]])}


def round(payload: dict[str, Any], scope: Any) -> dict[str, Any]:
    """Every clip once, in batches."""
    clips, batch = scope.state["clips"], scope.state["batch"]
    start = time.perf_counter()
    for at in range(0, len(clips), batch):
        scope.state["answer"](clips[at : at + batch])
    return {"seconds": time.perf_counter() - start, "count": len(clips)}


def _eager(payload: dict[str, Any], extractor: Any) -> Any:
    import torch
    import transformers

    torch.set_num_threads(payload["threads"])
    whisper = transformers.WhisperForConditionalGeneration.from_pretrained(
        payload["folder"], local_files_only=True, dtype=torch.float32
    ).eval()

    def answer(clips: list[Any]) -> list[list[int]]:
        heard = extractor(clips, sampling_rate=16000, return_tensors="pt").input_features
        with torch.inference_mode():
            found = whisper.generate(heard, do_sample=False, num_beams=1)
        return [[token for token in row if token < END] for row in found.tolist()]

    return answer


def _ctranslate2(payload: dict[str, Any], extractor: Any) -> Any:
    sys.path.insert(0, payload["site"])
    import ctranslate2  # type: ignore[import-not-found,unused-ignore]
    import numpy as np

    whisper = ctranslate2.models.Whisper(
        payload["model"], device="cpu", compute_type=payload["kind"], intra_threads=payload["threads"]
    )

    def answer(clips: list[Any]) -> list[list[int]]:
        heard = np.ascontiguousarray(extractor(clips, sampling_rate=16000, return_tensors="np").input_features)
        prompts = [PROMPT] * len(clips)
        found = whisper.generate(ctranslate2.StorageView.from_array(heard), prompts, beam_size=1, max_length=448)
        return [[token for token in each.sequences_ids[0] if token < END] for each in found]

    return answer
