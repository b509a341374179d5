"""A tiny random Whisper as a Hugging Face folder: one layer on each side, 2 seconds of hearing, made-up words."""

from __future__ import annotations

import json
from pathlib import Path

WORDS = 40
END, START, SILENT = WORDS, WORDS + 1, WORDS + 2
POSITIONS = 100
"""Of the encoder: 2 seconds."""


def write(folder: Path, seed: int = 0) -> Path:
    """Write the folder, and return it."""
    import torch
    import transformers

    torch.manual_seed(seed)
    config = transformers.WhisperConfig(
        vocab_size=WORDS + 3,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_mel_bins=80,
        max_source_positions=POSITIONS,
        max_target_positions=24,
        pad_token_id=END,
        bos_token_id=END,
        eos_token_id=END,
        decoder_start_token_id=START,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        init_std=0.3,
    )
    model = transformers.WhisperForConditionalGeneration(config)
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=START,
        eos_token_id=END,
        pad_token_id=END,
        max_length=24,
        suppress_tokens=[3, START, SILENT],
        begin_suppress_tokens=[0, END],
        no_timestamps_token_id=SILENT,
        is_multilingual=False,
    )
    model.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=2).save_pretrained(folder)
    letters = [f"\u0120{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(WORDS)]
    special = {END: "<|endoftext|>", START: "<|startoftranscript|>", SILENT: "<|notimestamps|>"}
    content = {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": text, "special": True} for number, text in special.items()],
        "model": {"type": "BPE", "vocab": {word: number for number, word in enumerate(letters)}, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder
