"""Tiny decoder language models with random weights, as Hugging Face folders with a tokenizer made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WORDS = "the train to the north leaves at seven, and people are on it once more"
SMALL = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}


def network(kind: str, **settings: Any) -> Any:
    """A model of transformers of the family `kind`, with weights large enough for logits that differ."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SMALL | settings)
    capped = "eager" if getattr(config, "attn_logit_softcapping", None) else None
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=capped)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model.float().eval()


def tokenizer() -> Any:
    """Bytes, with a few merges learnt from a few words, and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>", "<end>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    core.train_from_iterator([WORDS] * 4, trainer)
    found = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")
    found.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    return found


def folder(path: Path, kind: str = "Llama", dtype: str = "bfloat16", **settings: Any) -> Path:
    import torch

    model = network(kind, **settings)
    model.generation_config.eos_token_id = [1, 2]
    model.to(getattr(torch, dtype)).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path
