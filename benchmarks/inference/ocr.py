"""The PP-OCRv4 text recogniser on lines of text of varying width: nobody's showpiece, beside the demo."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from benchmarks.common import Group, Run, Taken
from benchmarks.fetch import Pinned, fetch
from benchmarks.inference.demo import fresh
from benchmarks.inference.optimised import Optimised, optimised

if TYPE_CHECKING:
    import numpy as np

RECOGNISER = Pinned(
    "rapidocr-onnxruntime",
    "1.4.4",
    "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
    "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
)
HEIGHT = 48
GRAIN = 32
"""Lines are filled up to a multiple of this many pixels, so that some share a width."""
LINES = 480
FIXED_WIDTH = 320
MAX_DROP = "1pt"
WORDS = """
the invoice of order total amount paid due date number account street city north avenue phone email receipt cash
card tax net gross item quantity price each discount thank you for shopping with us open daily from until please
keep this ticket valid one adult child return single platform train gate seat flight boarding time closes exit
no smoking parking caution wet floor private property sale new fresh bread coffee milk sugar salt water energy
contains may traces nuts store in dry place best before batch made by warning do not cover read instructions
""".split()  # noqa: SIM905


def speedup(run: Run) -> Mapping[str, Taken]:
    found = ocr(run)
    taken = fresh(run, found, "throughput")
    best = found.study.best
    quality = None if best is None else best.measurement.quality
    kept = "" if quality is None else f"; {quality.metric} {quality.value.value:.4f} of positions to fp32"
    return {"ocr_rec.offline.speedup": Taken(taken.value, f"{taken.how}{kept}; {reading(run)}", taken.ci95)}


def ocr(run: Run) -> Optimised:
    return optimised(
        run,
        "ocr offline",
        str(fetch(RECOGNISER)),
        "benchmarks.inference.ocr:samples",
        metric="top1-agreement",
        max_drop=MAX_DROP,
        budget_s=run.pick(300.0, 30.0),
    )


def samples() -> Iterator[dict[str, np.ndarray]]:
    """Lines of text as the recogniser wants them: BGR [3, 48, width] in -1..1, filled up with zeros on the right."""
    for _, image in lines():
        yield {"x": image}


def samples_320() -> Iterator[dict[str, np.ndarray]]:
    """The lines of at most 320 pixels among more of them, all filled up to 320."""
    import numpy as np

    short = (image for _, image in lines(5 * LINES) if image.shape[2] <= FIXED_WIDTH)
    for image in islice(short, LINES):
        yield {"x": np.pad(image, ((0, 0), (0, 0), (0, FIXED_WIDTH - image.shape[2])))}


def lines(count: int = LINES) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (text, image): 2 to 9 words or a price, drawn in Pillow's own font on grey paper, blurred and noisy."""
    import numpy as np
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    draw, noise = random.Random(0), np.random.default_rng(0)
    font = ImageFont.load_default(30)
    for number in range(count):
        text = " ".join(draw.choice(WORDS) for _ in range(draw.randint(2, 9)))
        if number % 4 == 0:
            text = f"{draw.choice(WORDS).capitalize()} {draw.randint(1, 999)}.{draw.randint(0, 99):02d}"
        width = int(font.getlength(text)) + 12
        paper, ink = draw.randint(170, 255), draw.randint(0, 90)
        page = Image.new("L", (width, HEIGHT), paper)
        ImageDraw.Draw(page).text((6, draw.randint(3, 9)), text, fill=ink, font=font)
        page = page.rotate(draw.uniform(-0.6, 0.6), Image.Resampling.BILINEAR, fillcolor=paper)
        page = page.filter(ImageFilter.GaussianBlur(draw.uniform(0.2, 0.9)))
        pixels = np.asarray(page, dtype=np.float32) + noise.normal(0, 6, (HEIGHT, width)).astype(np.float32)
        image = np.zeros((3, HEIGHT, -(-width // GRAIN) * GRAIN), dtype=np.float32)
        image[:, :, :width] = np.clip(pixels, 0, 255) / 127.5 - 1
        yield text, image


def reading(run: Run) -> str:
    """A check that the inputs make sense: how much of the first lines the model as brought reads right."""
    from hasten.isolate import run as in_worker

    share = in_worker("benchmarks.inference.ocr:read", {"model": str(fetch(RECOGNISER)), "lines": run.pick(64, 16)})
    return f"the model as brought reads {share:.0%} of the characters right"


def read(payload: dict[str, Any], scope: Any) -> float:
    """Worker function: the share of characters read right, spaces aside, by greedy CTC decoding."""
    import difflib

    import onnxruntime as ort

    session = ort.InferenceSession(payload["model"], providers=["CPUExecutionProvider"])
    alphabet = session.get_modelmeta().custom_metadata_map["character"].splitlines()
    right = total = 0
    for text, image in lines(payload["lines"]):
        scores = session.run(None, {"x": image[None]})[0][0]
        wanted, found = text.replace(" ", ""), decode(scores.argmax(axis=1).tolist(), alphabet).replace(" ", "")
        matched = difflib.SequenceMatcher(None, wanted, found, autojunk=False).get_matching_blocks()
        right += sum(block.size for block in matched)
        total += len(wanted)
    return right / total


def decode(classes: Sequence[int], alphabet: Sequence[str]) -> str:
    """Repeats joined and blanks (class 0) left out; a class beyond the alphabet is a space.

    >>> decode([0, 1, 1, 0, 1, 2, 3], ["a", "b"])
    'aab '
    """
    kept = [c for c, before in zip(classes, [0, *classes], strict=False) if c and c != before]
    return "".join(alphabet[c - 1] if c <= len(alphabet) else " " for c in kept)


GROUPS = [Group({"ocr_rec.offline.speedup": "x"}, speedup)]
