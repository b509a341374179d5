"""Train the demo's residual CNN on Fashion-MNIST and export it as fp32 ONNX with 2,000 labelled test images.

    apt-get download dataset-fashion-mnist && dpkg-deb -x dataset-fashion-mnist_*.deb fashion
    python examples/train_demo.py fashion/usr/share/datasets/fashion-mnist --out src/hasten/demo/data

Needs the `torch` extra. About 25 minutes on two CPU cores. The test images take no part in training: the
checkpoint is the last one, not the best on the test set.
"""

from __future__ import annotations

import argparse
import gzip
import time
from pathlib import Path

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from torch import nn

from hasten.levers.export import forget_traces

MEAN, STD = 0.2860, 0.3530  # of the 60,000 training images


def read_idx(path: Path) -> np.ndarray:
    """Read an IDX file (http://yann.lecun.com/exdb/mnist): 4-byte magic whose last byte is the rank, then the dims."""
    raw = gzip.decompress(path.read_bytes())
    dims = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(dims)


class Block(nn.Module):
    """Two 3x3 convolutions with batch norm around a residual connection."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class DemoNet(nn.Module):
    """[n, 1, 28, 28] float images in 0..1 to [n, 10] logits: 0.97M parameters, 138 MFLOP an image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2))
        self.body = nn.Sequential(
            Block(64, 64, 1), Block(64, 64, 1), Block(64, 128, 2), Block(128, 128, 1), Block(128, 128, 1)
        )
        self.head = nn.Linear(128, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = self.body(self.stem((image - MEAN) / STD))
        return self.head(features.mean(dim=(2, 3)))


def augment(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random horizontal flip and a shift of up to two pixels, one draw for each image."""
    count = len(images)
    flip = torch.rand(count, generator=generator) < 0.5
    images = torch.where(flip[:, None, None, None], images.flip(3), images)
    padded = F.pad(images, (2, 2, 2, 2))
    dy, dx = torch.randint(0, 5, (2, count), generator=generator)
    rows = dy[:, None] + torch.arange(28)
    cols = dx[:, None] + torch.arange(28)
    return padded[torch.arange(count)[:, None, None], 0, rows[:, :, None], cols[:, None, :]][:, None]


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    model.eval()
    with torch.inference_mode():
        hits = sum(
            int((model(x).argmax(1) == y).sum()) for x, y in zip(images.split(500), labels.split(500), strict=True)
        )
    return hits / len(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)

    def load(split: str) -> tuple[torch.Tensor, torch.Tensor]:
        images = read_idx(args.dataset / f"{split}-images-idx3-ubyte.gz").astype(np.float32)[:, None] / 255
        labels = read_idx(args.dataset / f"{split}-labels-idx1-ubyte.gz").astype(np.int64)
        return torch.from_numpy(images), torch.from_numpy(labels)

    images, labels = load("train")
    test_images, test_labels = load("t10k")
    model = DemoNet().to(memory_format=torch.channels_last)
    steps = args.epochs * (len(images) // args.batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=steps, pct_start=0.2)
    start = time.perf_counter()
    for epoch in range(args.epochs):
        model.train()
        order = torch.randperm(len(images), generator=generator)
        total = 0.0
        for index in order.split(args.batch)[: len(images) // args.batch]:
            batch = augment(images[index], generator).contiguous(memory_format=torch.channels_last)
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(batch).float(), labels[index], label_smoothing=0.05)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * args.batch
        seconds = time.perf_counter() - start
        print(
            f"epoch {epoch + 1}/{args.epochs}  loss {total / len(images):.4f}  "
            f"test {accuracy(model, test_images, test_labels):.4f}  {seconds:.0f} s",
            flush=True,
        )

    args.out.mkdir(parents=True, exist_ok=True)
    model.eval()
    torch.onnx.export(
        model,
        (test_images[:2],),
        args.out / "fashion_cnn.onnx",
        input_names=["image"],
        output_names=["logits"],
        dynamic_shapes={"image": {0: torch.export.Dim("n", min=1, max=4096)}},
        opset_version=18,
        dynamo=True,
        external_data=False,
    )
    exported = onnx.load(args.out / "fashion_cnn.onnx")
    forget_traces(exported)
    onnx.save(exported, args.out / "fashion_cnn.onnx")
    pick = np.sort(np.random.default_rng(args.seed).permutation(len(test_images))[:2000])
    np.savez_compressed(
        args.out / "fashion_test.npz",
        image=(test_images[pick].numpy() * 255).round().astype(np.uint8),
        label=test_labels[pick].numpy(),
    )
    (args.out / "README.md").write_text(
        "Fashion-MNIST (Zalando Research, MIT licence): a residual CNN trained by `examples/train_demo.py` "
        f"(seed {args.seed}, {args.epochs} epochs, torch {torch.__version__}) and 2,000 of the 10,000 test images, "
        f"drawn at random. Accuracy on all 10,000: {accuracy(model, test_images, test_labels):.4f}.\n"
    )


if __name__ == "__main__":
    main()
