"""Reads a folder of images: a sub-folder's name is its images' label, and pixels stay as they are unless told."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hasten.data.fit import Fitter, Row, expected, expects
from hasten.errors import InvalidInput
from hasten.model import Tensor

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
Layout = Literal["NCHW", "NHWC"]
_CHANNELS = (1, 3, 4)
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True)
class ImageOptions:
    """How pixels become an input. `image_size` is (height, width); None takes the model's, or each image's own.

    With `mean` or `std` a pixel becomes `(pixel / 255 - mean) / std`, per channel, as torchvision does; without both it
    stays 0 to 255. `layout` None is read from the signature.
    """

    image_size: tuple[int, int] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    layout: Layout | None = None


def rows(
    folder: Path, fitter: Fitter, options: ImageOptions, preprocess: Callable[[np.ndarray], Any] | None
) -> tuple[int, Iterator[Row]]:
    """How many images `folder` holds, and the samples.

    `preprocess` takes uint8 [height, width, 3] and gives an array or a dict of inputs; it replaces `options`.
    """
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise InvalidInput("reading images needs Pillow, which is not installed", "install it", "pip install pillow") \
            from None  # fmt: skip
    files, labels, note = _find(folder)
    fitter.note(note)
    if preprocess is None:
        tensor = _image_input(fitter)
        convert = _converter(tensor, options, fitter)
        mode = _MODES[_channels(tensor, _layout(tensor, options))]
    else:
        tensor, convert, mode = None, preprocess, "RGB"
    return len(files), _read(folder, files, labels, fitter, convert, mode, tensor)


def _find(folder: Path) -> tuple[list[Path], list[int] | None, str]:
    top = sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())
    classes = {
        sub.name: found
        for sub in sorted(folder.iterdir())
        if sub.is_dir() and (found := sorted(f for f in sub.rglob("*") if f.suffix.lower() in SUFFIXES and f.is_file()))
    }
    if top and classes:
        raise InvalidInput(
            f"{folder} has images both directly in it ({len(top)}) and in sub-folders ({', '.join(list(classes)[:4])})",
            "put all images in sub-folders named after their labels, or none",
        )
    if top:
        return top, None, "images without labels"
    if not classes:
        raise InvalidInput(f"{folder} holds no images ({', '.join(sorted(SUFFIXES))})", "name a folder of images")
    if all(name.isdigit() for name in classes):
        numbers = {name: int(name) for name in classes}
        note = "labels are the sub-folders' numbers"
    else:
        numbers = {name: at for at, name in enumerate(classes)}
        note = "labels are the sub-folders in alphabetical order: " + ", ".join(
            f"{at}={name}" for name, at in list(numbers.items())[:20]
        )
    files = [file for found in classes.values() for file in found]
    return files, [numbers[name] for name, found in classes.items() for _ in found], note


def _read(
    folder: Path,
    files: Sequence[Path],
    labels: Sequence[int] | None,
    fitter: Fitter,
    convert: Callable[[np.ndarray], Any],
    mode: str,
    tensor: Tensor | None,
) -> Iterator[Row]:
    inputs = fitter.signature.inputs
    for at, file in enumerate(files):
        where = str(file.relative_to(folder))
        pixels = _pixels(file, mode, where)
        try:
            value = convert(pixels)
        except InvalidInput:
            raise
        except Exception as error:  # the user's own function
            raise InvalidInput(f"{where}: preprocess raised {type(error).__name__}: {error}", "repair it") from error
        if not isinstance(value, dict):
            if len(inputs) != 1:
                raise InvalidInput(f"{where}: preprocess gave a {type(value).__name__}",
                                   f"return a dict with {expects(fitter.signature)}")  # fmt: skip
            value = {inputs[0].name: value}
        yield Row(value, None if labels is None else labels[at], where)


def _pixels(file: Path, mode: str, where: str) -> np.ndarray:
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file) as image:
                return np.asarray(image.convert(mode))
    except Exception as error:  # each of Pillow's decoders raises its own kind
        raise InvalidInput(f"{where} is not a readable image: {error}", "remove or replace it") from None


def _image_input(fitter: Fitter) -> Tensor:
    inputs = fitter.signature.inputs
    if len(inputs) != 1 or inputs[0].shape is None or len(inputs[0].shape) not in (3, 4):
        raise InvalidInput(
            f"the model expects {expects(fitter.signature)}, which is not one image",
            "turn an image into these inputs in a function of your own", "--preprocess module:function",
        )  # fmt: skip
    return inputs[0]


def _sides(tensor: Tensor) -> tuple[Any, ...]:
    shape = tensor.shape or ()
    return shape[-3:]


def _layout(tensor: Tensor, options: ImageOptions) -> Layout:
    if options.layout is not None:
        return options.layout
    first, _, last = _sides(tensor)
    if first in _CHANNELS and last not in _CHANNELS:
        return "NCHW"
    if last in _CHANNELS and first not in _CHANNELS:
        return "NHWC"
    raise InvalidInput(
        f"it is not clear which axis of {expected(tensor)} holds the channels", "say it", "--preprocess layout=nchw"
    )


def _channels(tensor: Tensor, layout: Layout) -> int:
    count = _sides(tensor)[0 if layout == "NCHW" else 2]
    if not isinstance(count, int):
        return 3
    if count not in _MODES:
        raise InvalidInput(
            f"{expected(tensor)} has {count} channels, images have 1, 3 or 4",
            "check the layout, or use a function of your own",
            "--preprocess module:function",
        )
    return count


def _converter(tensor: Tensor, options: ImageOptions, fitter: Fitter) -> Callable[[np.ndarray], np.ndarray]:
    layout = _layout(tensor, options)
    channels = _channels(tensor, layout)
    sides = _sides(tensor)[1:] if layout == "NCHW" else _sides(tensor)[:2]
    size = options.image_size or (sides if all(isinstance(side, int) for side in sides) else None)
    scale = options.mean is not None or options.std is not None
    mean = _per_channel(options.mean or (0.0,), channels, "mean")
    std = _per_channel(options.std or (1.0,), channels, "std")
    if (std == 0).any():
        raise InvalidInput("a standard deviation of 0 divides by zero", "give positive ones",
                           "--preprocess std=0.229/0.224/0.225")  # fmt: skip
    if scale and "float" not in tensor.dtype:
        raise InvalidInput(f"mean and std make floating-point pixels, the model takes {expected(tensor)}",
                           "leave mean and std out of --preprocess")  # fmt: skip
    fitter.note(f"layout {layout}" + (f", resized to {size[0]}x{size[1]}" if size else ", sizes as they are"))
    if scale:
        fitter.note(f"pixels scaled to 0..1, then (pixel - {mean.tolist()}) / {std.tolist()}")

    def convert(pixels: np.ndarray) -> np.ndarray:
        if size is not None and pixels.shape[:2] != tuple(size):
            from PIL import Image

            pixels = np.asarray(Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling.BILINEAR))
        pixels = pixels.reshape(*pixels.shape[:2], channels)
        if scale:
            pixels = ((pixels.astype(np.float32) / 255 - mean) / std).astype(np.float32)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)) if layout == "NCHW" else pixels

    return convert


def _per_channel(values: Sequence[float], channels: int, what: str) -> np.ndarray:
    if len(values) not in (1, channels):
        raise InvalidInput(f"{what} has {len(values)} values, the model's images have {channels} channel(s)",
                           f"give 1 or {channels}")  # fmt: skip
    return np.broadcast_to(np.asarray(values, np.float32), (channels,))
