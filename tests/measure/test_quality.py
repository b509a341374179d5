from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.data import SampleSet
from hasten.errors import Failed, InvalidInput
from hasten.goal import Drop
from hasten.isolate import Scope, run
from hasten.measure.outputs import save
from hasten.measure.quality import compare, default_metric, evaluate, metric, names
from hasten.model import Signature, Tensor


def classifier(n: int, wrong: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores of three classes that miss the label on the first `wrong` samples."""
    labels = np.random.default_rng(seed).integers(0, 3, n)
    said = labels.copy()
    said[:wrong] = (said[:wrong] + 1) % 3
    return np.eye(3)[said] + np.random.default_rng(seed + 1).uniform(0, 0.4, (n, 3)), labels


def worsened(scores: np.ndarray, labels: np.ndarray, more: int) -> np.ndarray:
    """The same with `more` samples spoilt, from the end."""
    spoilt = scores * 1.01
    spoilt[len(scores) - more :] = np.eye(3)[(labels[len(scores) - more :] + 1) % 3]
    return spoilt


def test_a_point_of_accuracy_is_a_hundredth_and_a_per_cent_is_relative() -> None:
    scores, labels = classifier(1000, 70)
    variant = worsened(scores, labels, 5)
    points = compare("accuracy", scores, variant, labels, Drop.parse("0.5pt"))
    assert points.baseline_value == pytest.approx(0.93)
    assert points.value.value == pytest.approx(0.925)
    assert points.drop.value == pytest.approx(0.5)
    relative = compare("accuracy", scores, variant, labels, Drop.parse("1%"))
    assert relative.drop.value == pytest.approx(100 * 0.005 / 0.93)


def test_a_drop_is_positive_when_worse_whatever_the_sign_of_the_metric() -> None:
    labels = np.linspace(0, 1, 50)
    close, far = labels + 0.1, labels + 0.3
    assert compare("mae", close, far, labels, Drop.parse("1pt")).drop.value == pytest.approx(0.2)
    assert compare("mae", far, close, labels, Drop.parse("1pt")).drop.value == pytest.approx(-0.2)
    assert compare("rmse", close, far, labels, Drop.parse("1%")).drop.value == pytest.approx(200.0)


def test_a_clear_loss_is_inferior_and_a_gain_is_not() -> None:
    scores, labels = classifier(1000, 70)
    variant = worsened(scores, labels, 100)
    worse = compare("accuracy", scores, variant, labels, Drop.parse("0.5pt"))
    assert worse.verdict == "inferior"
    assert "more than the 0.5pt allowed" in worse.text
    better = compare("accuracy", variant, scores, labels, Drop.parse("0.5pt"))
    assert better.verdict == "non-inferior"
    assert "better" in better.text


def test_too_few_samples_are_undecided_and_the_number_needed_is_told() -> None:
    scores, labels = classifier(40, 4)
    few = compare("accuracy", scores, scores * 1.01, labels, Drop.parse("0.5pt"))
    assert few.verdict == "undecided"
    assert few.samples_needed is not None
    assert 500 < few.samples_needed < 2000
    assert f"{few.samples_needed:,} samples would decide" in few.text
    scores, labels = classifier(few.samples_needed + 1, 4)
    assert compare("accuracy", scores, scores * 1.01, labels, Drop.parse("0.5pt")).verdict == "non-inferior"


def test_the_verdict_rests_on_the_one_sided_bound_which_is_below_the_end_of_the_interval() -> None:
    scores, labels = classifier(1000, 70)
    variant = worsened(scores, labels, 5)
    loose = compare("accuracy", scores, variant, labels, Drop.parse("5pt"))
    assert loose.drop.value < loose.bound < loose.drop.high
    assert f"with 95% confidence at most {loose.bound:.3g}pt" in loose.text
    assert loose.to_json()["drop_bound"] == loose.bound
    between = Drop((loose.bound + loose.drop.high) / 2, "pt")
    assert compare("accuracy", scores, variant, labels, between).verdict == "non-inferior"
    one = compare("mae", np.ones(1), np.full(1, 1.5), np.ones(1), Drop.parse("5pt"))
    assert one.to_json()["drop_bound"] is None, "JSON has no infinity"


def test_one_sample_decides_nothing_unless_the_outputs_are_the_same() -> None:
    scores, labels = classifier(1, 0)
    assert compare("accuracy", scores, scores * 1.01, labels, Drop.parse("50%")).verdict == "undecided"
    same = compare("accuracy", scores, scores * (1 + 1e-6), labels, Drop.parse("0.1pt"))
    assert same.verdict == "non-inferior"
    assert "to within rounding" in same.text


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(["accuracy", "f1", "top1-agreement", "cosine", "normalised-error"]))
def test_a_model_is_never_worse_than_itself(seed: int, name: str) -> None:
    scores, labels = classifier(30, 5, seed)
    itself = compare(name, scores, scores.copy(), labels, Drop.parse("0.1pt"), seed=seed)
    assert itself.verdict == "non-inferior"
    assert itself.drop.value == 0.0


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 30))
def test_the_interval_holds_the_drop_and_a_seed_gives_the_same_one(seed: int, more: int) -> None:
    scores, labels = classifier(80, 10, seed)
    variant = worsened(scores, labels, more)
    for name in ("accuracy", "f1"):
        found = compare(name, scores, variant, labels, Drop.parse("1pt"), seed=seed, resamples=200)
        assert found.drop.low <= found.drop.value <= found.drop.high
        assert found.value.low <= found.value.value <= found.value.high
        again = compare(name, scores, variant, labels, Drop.parse("1pt"), seed=seed, resamples=200)
        assert again.to_json() == found.to_json()


def test_fidelity_needs_no_labels_and_says_what_it_is() -> None:
    outputs = np.random.default_rng(0).normal(size=(200, 64)).astype(np.float32)
    found = compare("cosine", outputs, outputs * 1.5 + 0.001, None, Drop.parse("1pt"))
    assert found.kind == "fidelity"
    assert found.baseline_value == 1.0
    assert found.verdict == "non-inferior"


def test_normalised_error_in_per_cent_is_relative_to_the_size_of_the_output() -> None:
    outputs = np.random.default_rng(0).normal(size=(100, 64))
    found = compare("normalised-error", outputs, outputs * 1.02, None, Drop.parse("1%"))
    assert found.drop.value == pytest.approx(2.0)
    assert found.verdict == "inferior"
    assert found.baseline_value == 0.0


def test_a_relative_drop_from_nothing_asks_for_points() -> None:
    scores, labels = classifier(30, 30)
    with pytest.raises(InvalidInput, match="relative") as caught:
        compare("accuracy", scores, scores * 1.01, labels, Drop.parse("1%"))
    assert "pt" in caught.value.fix


def test_outputs_that_are_not_finite_fail_the_variant() -> None:
    scores, labels = classifier(30, 3)
    variant = scores.copy()
    variant[4, 1] = np.nan
    with pytest.raises(Failed, match="not finite on 1 of 30 samples"):
        compare("accuracy", scores, variant, labels, Drop.parse("1%"))


def test_an_unknown_metric_lists_those_there_are() -> None:
    with pytest.raises(InvalidInput, match="no metric called 'acuracy'") as caught:
        metric("acuracy")
    assert "accuracy" in caught.value.fix
    assert set(names()) >= {"accuracy", "spearman", "perplexity", "cosine"}


def test_a_metric_that_does_not_fit_is_named_with_the_shapes() -> None:
    scores, labels = classifier(30, 3)
    with pytest.raises(InvalidInput, match=r"spearman failed on outputs of shape \(30, 3\).*labels of shape \(30,\)"):
        compare("spearman", scores, scores, labels, Drop.parse("1%"))
    with pytest.raises(InvalidInput, match="accuracy needs labels"):
        compare("accuracy", scores, scores, None, Drop.parse("1%"))


USER = """
import numpy as np

def share_of_zeros(outputs, labels):
    return float((outputs.argmax(axis=1) == 0).mean())

def wer(outputs, labels):
    return 10 * float((outputs.argmax(axis=1) != labels).mean())

wer.higher_is_better = False

def throws(outputs, labels):
    raise KeyError("tokenizer")

def not_a_number(outputs, labels):
    return float("nan")

def both(outputs, labels):
    return float(outputs["a"].mean() + outputs["b"].mean())
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "quality_user_metrics.py").write_text(USER)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "quality_user_metrics"


def test_a_users_function_is_a_metric_and_says_which_way_is_better(user_module: str) -> None:
    scores, labels = classifier(300, 20)
    found = compare(f"{user_module}:wer", scores, worsened(scores, labels, 30), labels, Drop.parse("0.1pt"))
    assert found.drop.value == pytest.approx(1.0)  # not within 0..1, so a point is one unit
    assert found.verdict == "inferior"
    share = compare(f"{user_module}:share_of_zeros", scores, scores[::-1], None, Drop.parse("50pt"))
    assert share.drop.value == pytest.approx(0.0)
    assert share.unit == "fraction"


def test_a_users_function_sees_every_output_when_none_was_chosen(user_module: str) -> None:
    outputs = {"a": np.arange(20.0), "b": np.ones(20)}
    found = compare(f"{user_module}:both", outputs, outputs, None, Drop.parse("1%"))
    assert found.baseline_value == pytest.approx(10.5)


@pytest.mark.parametrize(("function", "said"), [("throws", "KeyError: 'tokenizer'"), ("not_a_number", "score is nan")])
def test_a_metric_that_throws_is_named_with_its_error(user_module: str, function: str, said: str) -> None:
    scores, labels = classifier(30, 3)
    with pytest.raises(InvalidInput) as caught:
        compare(f"{user_module}:{function}", scores, scores, labels, Drop.parse("1%"))
    assert f"{user_module}:{function} failed on outputs of shape (30, 3)" in caught.value.cause
    assert said in caught.value.cause


def test_the_worker_function_reads_outputs_and_labels_from_files(tmp_path: Path) -> None:
    scores, labels = classifier(60, 5)
    chosen = list(range(59, 29, -1))
    samples = SampleSet.write(tmp_path / "samples", [{"x": np.float32(i)} for i in range(60)], labels)
    for name, values in (("baseline", scores), ("variant", worsened(scores, labels, 2))):
        save(tmp_path / f"{name}.npz", [{"logits": values[i], "other": np.zeros(2)} for i in chosen])
    payload = {
        "metric": "accuracy",
        "baseline": str(tmp_path / "baseline.npz"),
        "variant": str(tmp_path / "variant.npz"),
        "labels": str(samples.path),
        "indices": chosen,
        "output": None,
        "max_drop": "0.5pt",
        "seed": 0,
        "resamples": 500,
    }
    found = evaluate(payload, Scope())
    assert found["samples"] == 30
    assert found["baseline_value"] == 1.0
    assert found["value"] == pytest.approx(28 / 30)
    assert found["drop"] == pytest.approx(200 / 30)
    assert found["drop_unit"] == "pt"
    assert found["kind"] == "labels"
    assert found["verdict"] == "undecided"
    assert run("hasten.measure.quality:evaluate", payload) == found
    with pytest.raises(InvalidInput, match="no output 'logit'"):
        evaluate(payload | {"output": "logit"}, Scope())


def test_outputs_of_different_counts_are_refused(tmp_path: Path) -> None:
    for name, count in (("baseline", 3), ("variant", 2)):
        save(tmp_path / f"{name}.npz", [{"y": np.ones(2)}] * count)
    payload = {
        "metric": "cosine", "baseline": str(tmp_path / "baseline.npz"), "variant": str(tmp_path / "variant.npz"),
        "indices": [0, 1], "max_drop": "1%",
    }  # fmt: skip
    with pytest.raises(Failed, match="3 samples, the variant of 2"):
        evaluate(payload, Scope())


def signature(name: str) -> Signature:
    return Signature((Tensor("x", "float32", (None, 4)),), (Tensor(name, "float32", (None, 10)),))


@pytest.mark.parametrize(
    ("name", "output", "expected"),
    [
        ("logits", np.ones(10), "top1-agreement"),
        ("y", np.full(10, 0.1), "top1-agreement"),
        ("y", np.full((4, 10), 0.1), "top1-agreement"),
        ("sentence_embedding", np.ones(10), "cosine"),
        ("y", np.ones(384), "cosine"),
        ("y", np.ones(100), "top1-agreement"),
        ("y", np.array([0.6, -0.8]), "cosine"),
        ("last_hidden_state", np.ones((7, 384)), "cosine"),
        ("y", np.ones((3, 32, 32)), "normalised-error"),
        ("y", np.array(3.5), "normalised-error"),
        ("y", np.array([3]), "top1-agreement"),
    ],
)
def test_without_labels_the_metric_fits_the_kind_of_output(name: str, output: np.ndarray, expected: str) -> None:
    assert (
        default_metric(signature(name), False, output.astype(np.float32) if output.dtype == float else output)
        == expected
    )


def test_with_labels_the_metric_is_accuracy_or_rmse() -> None:
    assert default_metric(signature("y"), True, np.ones(10)) == "accuracy"
    assert default_metric(signature("y"), True, {"y": np.ones(1)}, labels=np.array([0.5, 1.5])) == "rmse"
    assert default_metric(signature("y"), True, {"y": np.ones(1)}, labels=np.array([120, 95])) == "rmse"
    assert default_metric(signature("y"), True, {"y": np.ones(1)}, labels=np.array([0, 1])) == "accuracy"
    assert default_metric(signature("y"), True, {"y": np.ones(3)}, labels=np.array([120, 95])) == "accuracy"
    assert default_metric(signature("y"), True, {"y": np.ones(3)}, labels=np.array(["a", "b"], object)) == "accuracy"


def test_labels_cannot_be_compared_with_an_embedding() -> None:
    assert default_metric(signature("sentence_embedding"), True, {"sentence_embedding": np.ones(8)}) == "cosine"
