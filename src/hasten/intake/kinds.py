"""The kinds of models that can be brought, with the packages that reading each one takes."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True)
class Kind:
    """Of models. `extra` is the extra of hasten that brings its `packages`; none where the core has them."""

    name: str
    packages: tuple[str, ...] = ()
    extra: str = ""

    @property
    def missing(self) -> tuple[str, ...]:
        """The packages that are not installed here."""
        return tuple(name for name in self.packages if not _installed(name))

    @property
    def command(self) -> str:
        """What installs them."""
        return f"pip install 'hasten[{self.extra}]'" if self.extra else ""


KINDS = (
    Kind("ONNX and OpenVINO files"),
    Kind("PyTorch modules and .pt2", ("torch", "onnxscript"), "torch"),
    Kind("Hugging Face folders: encoders, vision", ("torch", "onnxscript", "transformers", "tokenizers"), "hf"),
    Kind("Hugging Face folders: language models", ("torch", "transformers", "openvino-tokenizers"), "hf,llm"),
    Kind("Hugging Face folders: Whisper", ("torch", "transformers"), "hf"),
    Kind("GGUF language models", ("openvino-genai", "openvino-tokenizers", "gguf"), "llm"),
    Kind("scikit-learn", ("scikit-learn", "skl2onnx", "skops"), "classic"),
    Kind("XGBoost", ("xgboost", "onnxmltools", "skl2onnx"), "classic"),
    Kind("LightGBM", ("lightgbm", "onnxmltools", "skl2onnx"), "classic"),
)


def _installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
