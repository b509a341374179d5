"""The vision demo: a residual CNN on Fashion-MNIST, with 2,000 labelled test images (see examples/train_demo.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.demo import Demo

if TYPE_CHECKING:
    import numpy as np

FOLDER = Path(__file__).parent / "data"


def demo() -> Demo:
    return Demo(
        "vision",
        "a residual CNN on 2,000 labelled Fashion-MNIST test images",
        str(FOLDER / "fashion_cnn.onnx"),
        "hasten.demo.vision:samples",
        "accuracy",
        "0.5pt",
        110.0,
    )


def samples() -> Iterator[tuple[dict[str, np.ndarray], int]]:
    """Yield (inputs, label): `image` is float32 [1, 28, 28] in 0..1."""
    import numpy as np

    with np.load(FOLDER / "fashion_test.npz") as stored:
        images = stored["image"].astype(np.float32) / 255
        labels = stored["label"]
    for image, label in zip(images, labels, strict=True):
        yield {"image": image}, int(label)
