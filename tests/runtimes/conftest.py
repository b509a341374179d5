"""What several runtimes are tested on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from hasten.model import Model


class Tiny(NamedTuple):
    """A Hugging Face folder of a decoder, and the OpenVINO model and tokenizer that it becomes."""

    folder: Path
    model: Model
    words: Path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    for package in ("torch", "transformers", "openvino_tokenizers"):
        pytest.importorskip(package)
    from causal_models import folder
    from hasten import intake

    path = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(path / "cache"))
        source = folder(path / "small", hidden_size=64)
        model = intake.load(source)
        words = intake.tokenizer(source, model)
    assert words is not None
    return Tiny(source, model, words.path)
