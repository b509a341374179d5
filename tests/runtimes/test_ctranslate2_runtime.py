"""Tiny encoders of text converted to CTranslate2 from Hugging Face folders: their outputs are those of the original."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hasten import intake
from hasten.bundle.script import run_script
from hasten.data import ingest
from hasten.device import Device
from hasten.errors import Failed, InvalidInput
from hasten.goal import Goal
from hasten.intake import huggingface
from hasten.levers.base import Case
from hasten.levers.ctranslate2 import CTranslate2 as Lever
from hasten.levers.ctranslate2 import convert
from hasten.model import Facts, Model, Signature, Tensor
from hasten.recipe import Recipe, Step
from hasten.runner import open_runner
from hasten.runtimes import Settings, runtime
from hasten.runtimes.ctranslate2 import CTranslate2
from hasten.variant import Variant
from hasten.workload import Padding, Workload

pytest.importorskip("ctranslate2")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(chr(97 + n) for n in range(26))]
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 48, "initializer_range": 0.3, "vocab_size": len(WORDS),
}  # fmt: skip
KINDS = {"Bert": {}, "Roberta": {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}, "DistilBert": {}}
DISTIL = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 48}


def folder(path: Path, kind: str = "Bert", pooling: str | None = None, head: str = "Model") -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    sizes = {**DISTIL, "vocab_size": len(WORDS), "initializer_range": 0.3} if kind == "DistilBert" else SIZES
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **KINDS[kind]})
    getattr(transformers, f"{kind}{head}")(config).save_pretrained(path)
    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(path / "tokenizer.json"))
    if pooling:
        kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
        modules = [{"path": each, "type": f"sentence_transformers.models.{kind}"} for kind, each in kinds.items()]
        (path / "modules.json").write_text(json.dumps(modules))
        (path / "1_Pooling").mkdir()
        (path / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    return path


def case(model: Model, path: Path) -> Case:
    draw = np.random.default_rng(0)
    rows = [{"input_ids": draw.integers(4, 30, length)} for length in (3, 9, 5, 9, 12, 7, 4, 11, 6, 8)]
    for row in rows:
        row["attention_mask"] = np.ones_like(row["input_ids"])
    samples = ingest(rows, model, path / "samples")
    workload = Workload(model, samples, "cosine", "offline")
    runtimes = ("torch", "ctranslate2")
    return Case(workload, Goal(), Device("paper"), Recipe(), path, workload.split(), runtimes=runtimes)


def padded() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(1)
    mask = (np.arange(10) < np.array([10, 4, 1, 7])[:, None]).astype(np.int64)
    return {"input_ids": draw.integers(4, 30, (4, 10)) * mask, "attention_mask": mask}


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [("Bert", "mean_tokens"), ("Roberta", None), ("DistilBert", "cls_token")],
)
def test_outputs_of_padded_texts_are_those_of_the_original(
    kind: str, pooling: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = intake.load(folder(tmp_path / "encoder", kind, pooling))
    looked_at = case(model, tmp_path)
    before, batch = Variant({"main": model}), padded()
    (small, exact) = [proposal.recipe for proposal in Lever().propose(looked_at)]
    assert small.steps[0].options == {"quantization": "int8"}
    assert exact.runtime == {"name": "ctranslate2", "precision": "fp32"}
    found = Lever().apply(before, exact.steps[0], looked_at)
    wanted = runtime("torch").load(model, Settings("fp32")).run(batch)
    session = CTranslate2().load(found.main, Settings("fp32", 1, 2))
    for got in (session.run(batch), session.submit(batch).result(), session.begin(batch)()):
        assert set(got) == set(wanted)
        for name, array in got.items():
            there = batch["attention_mask"][..., None] if array.ndim == 3 else 1
            assert np.allclose(array * there, wanted[name] * there, atol=1e-4)
    session.close()
    if pooling:
        rows = [{name: array[i, :n] for name, array in batch.items()} for i, n in enumerate((10, 4, 1, 7))]
        padding = Padding({"input_ids": 0, "attention_mask": 0}, 0, True, "")
        recipe = exact.edit("runner", batch=3, sort=True)
        with open_runner(found, recipe, model.signature, padding) as runner:
            for row, one in zip(wanted["sentence_embedding"], runner.run(rows), strict=True):
                assert np.allclose(row, one["sentence_embedding"], atol=1e-4)
        less = Lever().apply(before, small.steps[0], looked_at)
        assert less.main.facts.size_bytes < found.main.facts.size_bytes
        near = CTranslate2().load(less.main, Settings()).run(batch)["sentence_embedding"]
        assert 0.98 < float((near * wanted["sentence_embedding"]).sum(axis=1).min()) < 1 - 1e-6


def test_a_model_that_it_does_not_run_is_refused_with_the_reason(tmp_path: Path) -> None:
    outputs = (Tensor("last_hidden_state", "float32", ("batch", "length", 16)),)
    model = Model(tmp_path / "model.pt2", "pt2", "", Signature(signature().inputs, outputs), Facts(0, 0))
    huggingface.remember(folder(tmp_path / "encoder"), model.path)
    assert Lever().refuse(case(model, tmp_path)) is None
    logits = replace(model, signature=replace(model.signature, outputs=(Tensor("logits", "float32", ("batch", 3)),)))
    assert "it gives logits" in str(Lever().refuse(case(logits, tmp_path)))
    assert not list(Lever().propose(case(logits, tmp_path)))
    with pytest.raises(Failed, match="it gives logits"):
        Lever().apply(Variant({"main": logits}), Step("ctranslate2"), case(logits, tmp_path))
    config = tmp_path / "encoder" / "config.json"
    told = json.loads(config.read_text())
    for key, value, reason in (("model_type", "t5", "this one is t5"), ("position_embedding_type", "r", "positions")):
        config.write_text(json.dumps({**told, key: value}))
        assert reason in str(Lever().refuse(case(model, tmp_path)))
    lone = replace(model, path=tmp_path / "elsewhere" / "model.pt2")
    assert "did not come as" in str(Lever().refuse(case(lone, tmp_path)))


def test_batches_that_it_cannot_take_are_refused(tmp_path: Path) -> None:
    written = convert(folder(tmp_path / "encoder"), tmp_path / "converted", "float32")
    outputs = (Tensor("last_hidden_state", "float32", ("batch", "length", 16)),)
    made = Signature(signature().inputs, outputs)
    session = CTranslate2().load(Model(written / "model.bin", "ctranslate2", "", made, Facts(0, 0)), Settings())
    with pytest.raises(InvalidInput, match="CTranslate2's own form"):
        intake.load(written)
    batch = padded()
    with pytest.raises(InvalidInput, match="misses attention_mask"):
        session.run({"input_ids": batch["input_ids"]})
    with pytest.raises(InvalidInput, match="up to the end of a text"):
        session.run({**batch, "attention_mask": batch["attention_mask"][:, ::-1]})
    long = np.ones((1, 60), np.int64)
    with pytest.raises(Failed, match="ctranslate2"):
        session.run({"input_ids": long, "attention_mask": long})
    session.close()


def signature() -> Signature:
    inputs = tuple(Tensor(name, "int64", ("batch", "length")) for name in ("input_ids", "attention_mask"))
    return Signature(inputs, ())


@pytest.mark.parametrize("program", ["single", "encoder_decoder"])
def test_a_bundles_script_stands_alone(program: str) -> None:
    text = run_script(CTranslate2(), "ctranslate2", "0", program)
    compile(text, "run.py", "exec")
    assert "import hasten" not in text
    assert "from hasten" not in text
