import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.measure.metrics import ranks, spoken, word_errors
from hasten.measure.quality import metric

sklearn = pytest.importorskip("sklearn.metrics", reason="scikit-learn comes with nncf")

seeds = st.integers(0, 2**32 - 1)


def classes(seed: int, count: int = 3, n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    r = np.random.default_rng(seed)
    labels = r.integers(0, count, n)
    labels[:count] = np.arange(count)
    scores = r.normal(size=(n, count))
    scores[np.arange(n), labels] += 1
    return scores, labels


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(2, 6))
def test_classification_metrics_are_scikit_learns(seed: int, count: int) -> None:
    scores, labels = classes(seed, count)
    said = scores.argmax(axis=1)
    average = "binary" if count == 2 else "macro"
    expected = {
        "accuracy": sklearn.accuracy_score(labels, said),
        "balanced_accuracy": sklearn.balanced_accuracy_score(labels, said),
        "f1": sklearn.f1_score(labels, said, average=average),
        "precision": sklearn.precision_score(labels, said, average=average, zero_division=0),
        "recall": sklearn.recall_score(labels, said, average=average),
    }
    for kind in ("macro", "micro", "weighted"):
        expected[f"f1_{kind}"] = sklearn.f1_score(labels, said, average=kind)
        expected[f"precision_{kind}"] = sklearn.precision_score(labels, said, average=kind, zero_division=0)
        expected[f"recall_{kind}"] = sklearn.recall_score(labels, said, average=kind)
    for name, value in expected.items():
        assert metric(name).score(scores, labels) == pytest.approx(value), name


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_regression_metrics_are_scikit_learns(seed: int) -> None:
    r = np.random.default_rng(seed)
    truth = r.normal(size=(50, 2))
    said = truth + r.normal(size=truth.shape)
    assert metric("mse").score(said, truth) == pytest.approx(sklearn.mean_squared_error(truth, said))
    assert metric("mae").score(said, truth) == pytest.approx(sklearn.mean_absolute_error(truth, said))
    assert metric("rmse").score(said, truth) == pytest.approx(sklearn.root_mean_squared_error(truth, said))
    assert metric("r2").score(said, truth) == pytest.approx(sklearn.r2_score(truth, said))


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_auc_and_top5_are_scikit_learns(seed: int) -> None:
    r = np.random.default_rng(seed)
    labels = np.concatenate([[0, 1], r.integers(0, 2, 40)])
    scores = np.round(r.normal(size=42) + labels, 1)  # rounded, so that there are ties
    expected = sklearn.roc_auc_score(labels, scores)
    assert metric("auc").score(scores, labels) == pytest.approx(expected)
    assert metric("auc").score(scores[:, None], labels) == pytest.approx(expected)
    assert metric("auc").score(np.stack([-scores, scores], axis=1), labels) == pytest.approx(expected)
    many, wanted = classes(seed, 8)
    found = metric("top5").score(many, wanted)
    assert found == pytest.approx(sklearn.top_k_accuracy_score(wanted, many, k=5, labels=np.arange(8)))


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_correlations_are_scipys(seed: int) -> None:
    from scipy import stats

    r = np.random.default_rng(seed)
    x = np.round(r.normal(size=40), 1)
    y = np.round(x + r.normal(size=40), 1)
    assert metric("pearson").score(x[:, None], y) == pytest.approx(stats.pearsonr(x, y)[0])
    assert metric("spearman").score(x, y) == pytest.approx(stats.spearmanr(x, y)[0])
    np.testing.assert_allclose(ranks(x), stats.rankdata(x))


def test_accuracy_by_hand() -> None:
    scores = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
    labels = np.array([0, 1, 1, 1])
    assert metric("accuracy").score(scores, labels) == 0.75
    per_sample = metric("accuracy").per_sample
    assert per_sample is not None
    assert per_sample(scores, labels).tolist() == [1, 1, 0, 1]


@pytest.mark.parametrize(
    "outputs",
    [
        np.array([0.9, 0.2, 0.6]),  # probabilities
        np.array([[3.0], [-1.0], [0.1]]),  # logits
        np.array([1, 0, 1]),  # classes
        np.array([[0.1, 0.9], [0.8, 0.2], [0.4, 0.6]]),
    ],
)
def test_binary_outputs_may_be_probabilities_logits_or_classes(outputs: np.ndarray) -> None:
    assert metric("accuracy").score(outputs, np.array([1, 0, 1])) == 1.0


def test_positions_are_judged_by_class_scores_last_or_second_and_padding_does_not_count() -> None:
    labels = np.array([[0, 1, -100], [2, 2, 0]])
    scores = np.zeros((2, 3, 4))
    for i, row in enumerate([[0, 1, 3], [2, 0, 0]]):
        scores[i, np.arange(3), row] = 1
    assert metric("accuracy").score(scores, labels) == pytest.approx((1 + 2 / 3) / 2)
    assert metric("accuracy").score(scores.transpose(0, 2, 1), labels) == pytest.approx((1 + 2 / 3) / 2)
    ragged = [scores[0, :2], scores[1]]
    assert metric("accuracy").score(ragged, labels) == pytest.approx((1 + 2 / 3) / 2)


def test_perplexity_of_a_uniform_guess_is_the_size_of_the_vocabulary() -> None:
    labels = np.array([[1, 2, -100], [0, 3, 3]])
    assert metric("perplexity").score(np.zeros((2, 3, 4)), labels) == pytest.approx(4.0)


def test_perplexity_by_hand_with_lengths_that_differ() -> None:
    outputs = [np.log(np.array([[0.5, 0.25, 0.25]])), np.log(np.array([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]]))]
    labels = np.array([[1, -100], [0, 0]])
    expected = np.exp(-(np.log(0.25) + np.log(0.5) + np.log(0.8)) / 3)
    assert metric("perplexity").score(outputs, labels) == pytest.approx(expected)


def test_agreement_counts_positions_and_plain_equality() -> None:
    ours = [np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[0.0, 1.0]])]
    theirs = [np.array([[0.2, 0.9], [0.3, 0.7]]), np.array([[0.1, 0.2]])]
    assert metric("top1-agreement").score(ours, theirs) == pytest.approx(0.75)
    assert metric("top1-agreement").score(np.array([1, 2, 3]), np.array([1, 2, 4])) == pytest.approx(2 / 3)


def test_cosine_and_normalised_error_by_hand() -> None:
    ours, theirs = np.array([[1.0, 1.0], [0.0, 2.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])
    assert metric("cosine").score(ours, theirs) == pytest.approx((1 / np.sqrt(2) + 1) / 2)
    assert metric("normalised-error").score(ours, theirs) == pytest.approx(1.0)
    nothing = np.zeros((1, 2))
    assert metric("cosine").score(nothing, nothing) == 1.0
    assert metric("cosine").score(nothing, np.ones((1, 2))) == 0.0
    assert metric("normalised-error").score(nothing, nothing) == 0.0


@settings(max_examples=40, deadline=None)
@given(seeds, st.floats(0.1, 10))
def test_fidelity_to_itself_is_perfect_and_cosine_ignores_scale(seed: int, factor: float) -> None:
    outputs = np.random.default_rng(seed).normal(size=(5, 3, 4))
    assert metric("top1-agreement").score(outputs, outputs) == 1.0
    assert metric("cosine").score(outputs * factor, outputs) == pytest.approx(1.0)
    assert metric("normalised-error").score(outputs, outputs) == 0.0


def test_masks_of_minus_infinity_do_not_spoil_fidelity() -> None:
    outputs = np.array([[1.0, -np.inf, 2.0]])
    assert metric("cosine").score(outputs, outputs) == pytest.approx(1.0)
    assert metric("normalised-error").score(outputs, outputs) == 0.0


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_the_order_of_samples_does_not_matter(seed: int) -> None:
    scores, labels = classes(seed)
    order = np.random.default_rng(seed).permutation(len(labels))
    for name in ("accuracy", "f1", "balanced_accuracy", "precision", "recall"):
        assert metric(name).score(scores[order], labels[order]) == pytest.approx(metric(name).score(scores, labels))


def test_text_is_compared_with_text_only() -> None:
    labels = np.array(["cat", "dog", "cat"], object)
    assert metric("accuracy").score(np.array(["cat", "cat", "cat"]), labels) == pytest.approx(2 / 3)
    assert metric("f1_micro").score(np.array(["cat", "cat", "cat"], object), labels) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="text cannot be compared"):
        metric("accuracy").score(np.zeros((3, 2)), labels)


def test_labels_that_no_class_has_are_an_error_and_not_a_low_score() -> None:
    with pytest.raises(ValueError, match="labels reach from 1 to 3, and there are 3 classes"):
        metric("accuracy").score(np.eye(3), np.array([1, 2, 3]))
    with pytest.raises(ValueError, match="labels reach from 0 to 9"):
        metric("top5").score(np.ones((2, 6)), np.array([0, 9]))


def test_a_word_error_rate_pools_the_errors_of_all_texts() -> None:
    said = np.array(["The cat sat!", "", "well, I'm here", "a b c"])
    wanted = np.array(["the cat sat", "nothing said", "Well I'm not here", "a x c d"], object)
    assert metric("wer").score(said, wanted) == pytest.approx((0 + 2 + 1 + 2) / (3 + 2 + 4 + 4))
    assert not metric("wer").higher_is_better
    assert metric("wer-to-original").kind == "fidelity"
    with pytest.raises(ValueError, match="at least one word"):
        metric("wer").score(np.array(["a"]), np.array(["..."], object))


@given(st.lists(st.sampled_from("abc"), max_size=7), st.lists(st.sampled_from("abc"), max_size=7))
def test_word_errors_are_a_distance(one: list[str], other: list[str]) -> None:
    found = word_errors(one, other)
    assert found == word_errors(other, one)
    assert abs(len(one) - len(other)) <= found <= max(len(one), len(other))
    assert (found == 0) == (one == other)
    assert word_errors(["x", *one], ["x", *other]) <= found


def test_words_are_compared_as_they_are_said() -> None:
    assert spoken("Well -- I\u2019m 'here', at_last: 3.5!") == ["well", "i'm", "here", "at", "last", "3", "5"]
