"""Hugging Face folders: built from their own files, and nothing in them is run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hasten import data, intake  # noqa: E402
from hasten.errors import InvalidInput  # noqa: E402
from hasten.intake import huggingface  # noqa: E402
from hasten.runtimes import Settings, runtime  # noqa: E402

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "on", "mat", "a", "dog", "ran"]


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def bert(folder: Path, kind: str = "BertModel", pooling: str | None = None) -> Path:
    """A tiny BERT with a word tokenizer, as save_pretrained leaves it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=48, num_labels=3,
    )  # fmt: skip
    getattr(transformers, kind)(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    if pooling:
        kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
        modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in kinds.items()]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    return folder


def outputs(model, batch):
    session = runtime("torch").load(model, Settings())
    try:
        return session.run(batch)
    finally:
        session.close()


def test_an_encoder_with_its_own_pooling(tmp_path):
    folder = bert(tmp_path / "encoder", pooling="mean_tokens")
    model = intake.load(folder)
    assert [t.name for t in model.signature.outputs] == ["sentence_embedding"]
    assert all(t.shape == ("batch", "length") for t in model.signature.inputs)
    batch = {"input_ids": np.array([[2, 4, 5, 3], [2, 9, 3, 0]]), "attention_mask": np.array([[1] * 4, [1, 1, 1, 0]])}
    bare = transformers.BertModel.from_pretrained(folder).eval()
    hidden = bare(**{name: torch.from_numpy(array) for name, array in batch.items()}).last_hidden_state
    mask = torch.from_numpy(batch["attention_mask"])[:, :, None].float()
    wanted = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1).detach().numpy()
    np.testing.assert_allclose(outputs(model, batch)["sentence_embedding"], wanted, atol=1e-5)


def test_a_classifier_gives_its_logits(tmp_path):
    model = intake.load(bert(tmp_path / "classifier", "BertForSequenceClassification"))
    assert [(t.name, t.shape) for t in model.signature.outputs] == [("logits", ("batch", 3))]


def test_a_vision_model(tmp_path):
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8,
        num_labels=4,
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    model = intake.load(tmp_path / "vit")
    assert model.signature.inputs[0].shape == ("batch", 3, 16, 16)
    assert model.signature.outputs[0].shape == ("batch", 4)


def test_text_becomes_token_numbers_by_the_folders_tokenizer(tmp_path):
    folder = bert(tmp_path / "encoder")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 5}')
    model = intake.load(folder)
    words = intake.tokenizer(folder, model)
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "the cat sat", "label": 1}\n{"text": "a dog ran on the mat", "label": 0}\n')
    samples = data.ingest(path, model, tmp_path / "samples", tokenizer=words.path)
    found = data.SampleSet.open(samples.path)
    assert found[0]["input_ids"].tolist() == [2, 4, 5, 6, 3]
    assert found[1]["input_ids"].tolist() == [2, 9, 10, 11, 3]  # cut to five, special tokens included
    assert str(found[1]["text"]) == "a dog ran on the mat"
    assert found.labels.tolist() == [1, 0]
    again = data.ingest(["the cat", "a dog"], model, tmp_path / "samples", tokenizer=words.path)
    assert data.SampleSet.open(again.path)[1]["input_ids"].tolist() == [2, 9, 10, 3]
    table = tmp_path / "texts.csv"
    table.write_text("sentence,label\nthe mat,1\na cat ran,0\n")
    third = data.SampleSet.open(data.ingest(table, model, tmp_path / "samples", tokenizer=words.path).path)
    assert third[0]["input_ids"].tolist() == [2, 4, 8, 3]


def test_the_runner_takes_text_and_ignores_the_numbers_beside_it(tmp_path):
    from hasten.recipe import Recipe
    from hasten.runner import open_runner
    from hasten.variant import Variant

    folder = bert(tmp_path / "encoder", pooling="mean_tokens")
    model = intake.load(folder)
    words = intake.tokenizer(folder, model)
    variant = Variant({"main": model, "tokenizer": words})
    texts = ["the cat sat", "a dog ran on the mat", "the mat"]
    samples = [{"text": np.asarray(text, object), "input_ids": np.zeros(1, np.int64)} for text in texts]
    with open_runner(variant, Recipe(runner={"batch": 1}), model.signature, None) as runner:
        found = runner.run(samples)
        one = runner.run_one(samples[1])
    batch = {"input_ids": np.array([[2, 9, 10, 11, 7, 4, 8, 3]]), "attention_mask": np.ones((1, 8), np.int64)}
    wanted = outputs(model, batch)["sentence_embedding"][0]
    np.testing.assert_allclose(found[1]["sentence_embedding"], wanted, atol=1e-5)
    np.testing.assert_allclose(one["sentence_embedding"], wanted, atol=1e-5)


def test_the_most_tokens_are_what_the_folder_says(tmp_path):
    folder = bert(tmp_path / "encoder")
    assert huggingface.longest(folder) == 48
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 32}')
    assert huggingface.longest(folder) == 32


def changed(folder: Path, **values: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"auto_map": {"AutoModel": "evil.Model"}}, "wants to run code of its own"),
        ({"architectures": ["T5ForConditionalGeneration"]}, "generates"),
    ],
)
def test_folders_that_cannot_be_taken_say_why(tmp_path, values, told):
    with pytest.raises(InvalidInput, match=told):
        intake.load(changed(bert(tmp_path / "encoder"), **values))


def test_damaged_folders_are_refused(tmp_path):
    folder = bert(tmp_path / "encoder")
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(InvalidInput, match="transformers cannot read encoder"):
        intake.load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(InvalidInput, match="is not JSON"):
        intake.load(folder)


def test_a_pooling_that_is_not_known_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="pools in a way that is not known"):
        intake.load(bert(tmp_path / "encoder", pooling="max_tokens"))
