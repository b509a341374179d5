"""Hugging Face folders of decoder language models: tiny ones with random weights, made here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("openvino_tokenizers")

from causal_models import folder, network
from hasten import intake
from hasten.errors import Failed, InvalidInput
from hasten.intake import causal, causal_graph
from hasten.runner.generate import open_generator
from hasten.runtimes.openvino_decoder import OpenVinoLanguage

EXACT = {"precision": "fp32", "kv_cache_precision": "f32"}
TEXT = "the train to the north leaves at seven, and people are on it"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def left(tmp_path: Path) -> list[str]:
    """What lies in the cache of models."""
    return sorted(path.name for path in (tmp_path / "cache").rglob("models/*"))


def test_a_folder_becomes_a_decoder_that_foresees_texts_as_transformers_does(tmp_path: Path) -> None:
    import torch
    import transformers

    path = folder(tmp_path / "small", hidden_size=64, tie_word_embeddings=True)
    assert intake.program(path) == "generate"
    said: list[str] = []
    model = intake.load(path, on_progress=lambda _, text: said.append(text))
    assert [t.name for t in model.signature.inputs] == ["input_ids", "attention_mask", "position_ids", "beam_idx"]
    assert [t.name for t in model.signature.outputs] == ["logits"]
    assert model.facts.kinds["ScaledDotProductAttention"] == 2, "attention is one operator"
    assert any("converting" in text for text in said)
    weights = model.path.with_suffix(".bin").stat().st_size
    assert weights < 1.1 * (path / "model.safetensors").stat().st_size, (
        "16 bits stay so, and a tied table is there once"
    )

    words = intake.tokenizer(path, model)
    assert words is not None
    original = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    ids = transformers.AutoTokenizer.from_pretrained(path)(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        loss = float(original(ids, labels=ids).loss)
        wanted = original.generate(ids, max_new_tokens=5, do_sample=False, eos_token_id=299)[0, ids.shape[1] :]
    with open_generator(OpenVinoLanguage(), model, words.path, EXACT, {"new_tokens": 5}) as generator:
        (found,) = generator.judge([{"text": np.array(TEXT)}])
        assert found["nll"][0] / found["nll"][1] == pytest.approx(loss, rel=1e-4)
        generator.to_the_end = True
        tokens = generator._tokenizer
        assert tokens.ends == {1, 2}
        assert str(generator.run_one({"text": np.array(TEXT)})["text"]) == tokens.decode(wanted.numpy())

    said.clear()
    assert intake.load(path, on_progress=lambda _, text: said.append(text)) == model
    assert not any("converting" in text for text in said), "it is converted once"


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("Mistral", {"sliding_window": 5}),
        ("Gemma3Text", {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 8}),
        ("Gemma2", {"sliding_window": 5, "head_dim": 8, "query_pre_attn_scalar": 8}),
        ("GPT2", {}),
        ("OPT", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    ],
)
def test_texts_that_share_a_batch_and_drafts_that_are_turned_down_change_no_logits(
    tmp_path: Path, kind: str, settings: dict[str, object]
) -> None:
    module = network(kind, **settings)
    draw = np.random.default_rng(0)
    texts = [draw.integers(3, 290, length).tolist() for length in (24, 13, 4)]
    wanted = causal_graph.logits_of(module, texts)
    graph = causal_graph.graph_of(module, kind)
    causal_graph.write(graph, tmp_path / "model.xml")
    assert causal_graph.compare(tmp_path / "model.xml", texts, wanted, kind) < 1e-4
    wanted[1][5] += wanted[1].max() / 50
    with pytest.raises(Failed, match="differ from those of transformers"):
        causal_graph.compare(tmp_path / "model.xml", texts, wanted, kind)


@pytest.mark.parametrize(("values", "dtype"), [(3.140625, "bf16"), (1.0009765625, "f16"), (3.1400001, "f32")])
def test_constants_are_stored_in_16_bits_only_where_they_are_the_same_numbers(
    tmp_path: Path, values: float, dtype: str
) -> None:
    import openvino as ov
    from openvino import opset13 as op

    table = np.full((64, 64), values, np.float32)
    x = op.parameter([-1, 64], np.float32, "x")
    causal_graph.write(ov.Model([op.matmul(x, op.constant(table), False, False)], [x]), tmp_path / "model.xml")
    model = ov.Core().read_model(tmp_path / "model.xml")
    (found,) = (node for node in model.get_ops() if node.get_type_name() == "Constant")
    assert found.get_element_type().get_type_name() == dtype
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    (got,) = ov.Core().compile_model(model, "CPU", exact)([np.eye(64, dtype=np.float32)]).values()
    np.testing.assert_array_equal(got, table)


@pytest.mark.parametrize(
    ("kind", "settings", "told"),
    [
        ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "rope_type dynamic"),
        ("Mamba", {}, "linear attention"),
        ("Mixtral", {"num_local_experts": 2}, "experts"),
        ("Bloom", {"n_layer": 1}, "ALiBi"),
        ("GPTNeo", {"attention_types": [[["global", "local"], 1]], "num_layers": 2}, "local attention"),
    ],
)
def test_models_of_other_kinds_are_refused(kind: str, settings: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        causal_graph.graph_of(network(kind, **settings), kind)


def test_folders_that_are_not_whole_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    path = folder(tmp_path / "small")
    weights, words = path / "model.safetensors", path / "tokenizer.json"
    whole, text = weights.read_bytes(), words.read_text()
    for spoil, told in (
        (lambda: weights.unlink(), "no weights in safetensors"),
        (lambda: weights.write_bytes(whole[: len(whole) // 2]), "transformers cannot read small"),
        (lambda: words.unlink(), "no tokenizer.json"),
        (lambda: words.write_text(text[:100]), "tokenizer in small cannot be read"),
    ):
        spoil()
        with pytest.raises(InvalidInput, match=told):
            intake.load(path)
        weights.write_bytes(whole)
        words.write_text(text)
    assert left(tmp_path) == []


def test_what_config_json_says_is_checked_before_anything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.mkdir()
    said = {"architectures": ["LlamaForCausalLM"]}
    for more, told in (
        ({"auto_map": {"AutoModelForCausalLM": "evil.Model"}}, "code of its own"),
        ({"quantization_config": {"quant_method": "awq"}}, r"quantised \(awq\)"),
    ):
        (path / "config.json").write_text(json.dumps(said | more))
        with pytest.raises(InvalidInput, match=told):
            intake.load(path)
    (path / "config.json").write_text(json.dumps({"architectures": ["WhisperForConditionalGeneration"]}))
    assert not causal.is_decoder(path)
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert not causal.is_decoder(path)
    (path / "generation_config.json").write_text("{}")
    assert causal.is_decoder(path)


def test_weights_that_the_model_misses_are_not_made_up(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = folder(tmp_path / "small")
    tensors = load_file(path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(InvalidInput, match=r"lack 1 tensors, model\.layers\.1\.mlp\.up_proj\.weight"):
        intake.load(path)
    assert left(tmp_path) == []
