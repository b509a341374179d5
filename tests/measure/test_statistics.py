from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.measure.statistics import (
    Interval,
    bootstrap_score,
    improvement,
    is_noisy,
    mean_interval,
    non_inferior,
    paired_bootstrap,
    pareto,
    percentile_interval,
    ratio_interval,
    samples_needed,
    signed_rank_interval,
    steady,
)

positive = st.floats(1e-3, 1e3)
rounds = st.lists(st.tuples(positive, positive), min_size=2, max_size=40)
numbers = st.floats(-1e6, 1e6)


def covered(interval: Interval, truth: float) -> bool:
    return interval.low <= truth <= interval.high


# -- ratios -----------------------------------------------------------------------------------------------------------


@given(rounds, st.floats(1e-3, 1e3))
def test_the_unit_of_the_rounds_does_not_matter(pairs: list[tuple[float, float]], factor: float) -> None:
    plain, scaled = ratio_interval(pairs), ratio_interval([(a * factor, b * factor) for a, b in pairs])
    assert scaled.value == pytest.approx(plain.value)
    assert scaled.ci95 == pytest.approx(plain.ci95)


@given(rounds, st.floats(0.1, 10))
def test_a_variant_that_is_quicker_by_a_factor_has_the_ratio_and_its_interval_times_that(
    pairs: list[tuple[float, float]], factor: float
) -> None:
    plain, quicker = ratio_interval(pairs), ratio_interval([(a, b / factor) for a, b in pairs])
    assert plain.ci95 is not None
    assert quicker.value == pytest.approx(plain.value * factor)
    assert quicker.ci95 == pytest.approx((plain.ci95[0] * factor, plain.ci95[1] * factor))


@given(rounds)
def test_swapping_the_sides_or_the_direction_inverts_the_ratio(pairs: list[tuple[float, float]]) -> None:
    plain = ratio_interval(pairs)
    assert plain.ci95 is not None
    for other in (ratio_interval([(b, a) for a, b in pairs]), ratio_interval(pairs, higher_is_better=True)):
        assert other.value == pytest.approx(1 / plain.value)
        assert other.ci95 == pytest.approx((1 / plain.ci95[1], 1 / plain.ci95[0]))


@given(rounds, st.randoms())
def test_a_ratio_lies_in_its_interval_whatever_the_order_of_rounds(
    pairs: list[tuple[float, float]], random: Any
) -> None:
    plain = ratio_interval(pairs)
    shuffled = list(pairs)
    random.shuffle(shuffled)
    assert plain.ci95 is not None
    assert plain.ci95[0] * (1 - 1e-9) <= plain.value <= plain.ci95[1] * (1 + 1e-9)
    assert ratio_interval(shuffled).ci95 == pytest.approx(plain.ci95)


@given(st.lists(positive, min_size=2, max_size=40))
def test_a_comparison_of_equal_rounds_is_exactly_1(values: list[float]) -> None:
    figure = ratio_interval([(value, value) for value in values])
    assert (figure.value, figure.ci95, figure.unit, figure.source) == (1.0, (1.0, 1.0), "x", "measured")


def test_a_higher_throughput_is_an_improvement_and_so_is_a_lower_latency() -> None:
    assert ratio_interval([(100.0, 200.0)] * 6, higher_is_better=True).value == pytest.approx(2)
    assert ratio_interval([(10.0, 5.0)] * 6).value == pytest.approx(2)


def test_one_round_claims_no_interval_and_two_claim_a_wide_one() -> None:
    assert improvement([2.0]).ci95 is None
    low, high = improvement([1.0, 2.0]).ci95 or (0, 0)
    assert low < 0.1
    assert high > 10


def test_two_rounds_that_disagree_beyond_measure_still_give_a_finite_interval() -> None:
    low, high = improvement([1e-300, 1e300]).ci95 or (0, 0)
    assert low == 0
    assert math.isfinite(high)


@pytest.mark.parametrize("pair", [(0.0, 1.0), (1.0, -1.0), (math.nan, 1.0), (1.0, math.inf)])
def test_a_round_that_cannot_be_compared_is_refused(pair: tuple[float, float]) -> None:
    with pytest.raises((ValueError, ZeroDivisionError)):
        ratio_interval([(1.0, 1.0), pair])


def test_one_burst_among_many_rounds_hardly_moves_the_ratio() -> None:
    pairs = [(2.0 + i / 100, 1.0) for i in range(20)]
    clean, hit = ratio_interval(pairs), ratio_interval([*pairs[:-1], (2.0, 50.0)])
    assert hit.value == pytest.approx(clean.value, rel=0.02)
    assert hit.ci95 == pytest.approx(clean.ci95, rel=0.03)


# -- one series -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "rank"), [(6, 1), (7, 3), (8, 4), (10, 9), (15, 26), (20, 53), (25, 90)])
def test_the_signed_rank_interval_follows_the_published_table(n: int, rank: int) -> None:
    """Critical values, two-sided 5%: 0, 2, 3, 8, 25, 52, 89 (Wilcoxon and Wilcox, 1964); the rank is one more."""
    values = np.random.default_rng(n).normal(size=n)
    means = sorted((values[i] + values[j]) / 2 for i in range(n) for j in range(i, n))
    interval = signed_rank_interval(values)
    assert (interval.low, interval.high) == (means[rank - 1], means[-rank])
    assert interval.value == pytest.approx(np.median(means))


def test_many_values_take_the_normal_approximation_without_a_jump() -> None:
    values = np.random.default_rng(0).normal(size=101)
    exact, approximate = signed_rank_interval(values[:100]), signed_rank_interval(values)
    assert approximate.high - approximate.low == pytest.approx(exact.high - exact.low, rel=0.05)


def test_a_mean_has_students_interval() -> None:
    interval = mean_interval([1.0, 2.0, 3.0, 4.0])
    assert interval.value == 2.5
    assert interval.high - interval.value == pytest.approx(3.182446 * math.sqrt(5 / 3) / 2, rel=1e-5)
    assert interval.value - interval.low == pytest.approx(interval.high - interval.value)


def test_neighbours_that_resemble_each_other_do_not_narrow_the_interval_of_a_mean() -> None:
    random = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        series = np.convolve(random.normal(size=619), np.ones(20) / 20, "valid")
        held += covered(mean_interval(series), 0.0)
    assert held > 265


def test_one_value_bounds_nothing() -> None:
    assert mean_interval([3.0]).ci95 is None
    assert mean_interval([3.0]).value == 3.0


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("n", [30, 100, 2000])
def test_the_interval_of_a_percentile_covers_it(n: int, q: float) -> None:
    random = np.random.default_rng(n)
    truth = -math.log(1 - q)
    assert sum(covered(percentile_interval(random.exponential(size=n), q), truth) for _ in range(500)) >= 465


@given(st.lists(numbers, min_size=1, max_size=200), st.floats(0.01, 0.99))
@settings(deadline=None)
def test_a_percentile_is_a_value_that_was_seen_and_lies_in_its_interval(values: list[float], q: float) -> None:
    interval = percentile_interval(values, q)
    assert interval.value in values
    assert sum(x <= interval.value for x in values) >= q * len(values) * (1 - 1e-9)
    assert interval.low <= interval.value <= interval.high


def test_a_hundred_values_do_not_bound_the_999th_per_mille() -> None:
    interval = percentile_interval(range(100), 0.999)
    assert interval.value == 99
    assert interval.high == math.inf
    assert interval.figure("ms").ci95 is None
    assert interval.figure("ms").to_json()["ci95"] is None


@pytest.mark.parametrize("values", [[], [math.nan], [[1.0, 2.0]]])
def test_statistics_of_nothing_or_of_nan_are_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="statistics need"):
        mean_interval(values)
    with pytest.raises(ValueError, match="between 0 and 1"):
        percentile_interval([1.0], 1.0)


# -- warm-up and noise ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [5, 20, 60])
def test_the_warm_up_is_cut_off_where_it_ends(length: int) -> None:
    random = np.random.default_rng(length)
    warm_up = 10 + 20 * np.exp(-np.arange(length) * 3 / length)
    found = [steady(np.concatenate([warm_up, 10 + 0.2 * random.normal(size=200)])) for _ in range(30)]
    cuts = [cut for cut in found if cut is not None]
    assert len(cuts) >= 27
    assert min(cuts) >= 0.6 * length
    assert np.median(cuts) <= length + 30


def test_a_series_that_is_steady_from_the_start_is_not_cut() -> None:
    assert steady([2.0] * 10) == 0
    assert steady(10 + 0.1 * np.random.default_rng(1).normal(size=200)) in (0, 5, 10)


def test_a_series_that_still_moves_is_not_steady() -> None:
    assert steady(np.linspace(20, 10, 100)) is None
    assert steady([1.0, 1.0, 1.0]) is None


def test_a_burst_at_the_end_does_not_pass_for_a_change_of_level() -> None:
    series = 10 + 0.1 * np.random.default_rng(3).normal(size=100)
    series[-4:] = 40
    assert steady(series) is not None


def test_a_machine_is_noisy_when_its_rounds_could_not_tell_5_per_cent() -> None:
    random = np.random.default_rng(0)
    assert not is_noisy(np.exp(0.01 * random.normal(size=10)))
    assert is_noisy(np.exp(0.3 * random.normal(size=10)))
    assert is_noisy([1.0, 1.0])
    assert not is_noisy(np.exp(0.3 * random.normal(size=2000)))


def test_a_slow_drift_is_not_noise_because_alternating_rounds_cancel_it() -> None:
    assert not is_noisy(np.linspace(1, 2, 30))


# -- quality ----------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(numbers, numbers), min_size=2, max_size=30),
    st.floats(0.01, 100),
)
@settings(deadline=None, max_examples=50)
def test_the_drop_of_scores_scales_with_them_and_changes_sign_with_the_direction(
    pairs: list[tuple[float, float]], factor: float
) -> None:
    a, b = np.array([pair[0] for pair in pairs]) + 2.5, np.array([pair[1] for pair in pairs]) + 2.5
    plain = paired_bootstrap(a, b, resamples=100)
    scaled = paired_bootstrap(factor * a, factor * b, resamples=100)
    lower = paired_bootstrap(a, b, higher_is_better=False, resamples=100)
    near = {"rel": 1e-6, "abs": 1e-3}
    assert plain.low <= plain.value <= plain.high
    assert scaled.low == pytest.approx(plain.low * factor, **near)
    assert lower.value == pytest.approx(-plain.value, **near)


def test_equal_scores_have_no_drop_and_the_same_seed_gives_the_same_interval() -> None:
    a = np.random.default_rng(0).normal(size=50)
    assert paired_bootstrap(a, a) == Interval(0.0, 0.0, 0.0)
    b = a + np.random.default_rng(1).normal(size=50)
    assert paired_bootstrap(a, b, seed=3) == paired_bootstrap(a, b, seed=3) != paired_bootstrap(a, b, seed=4)


def test_the_drop_of_skewed_scores_is_covered() -> None:
    random = np.random.default_rng(0)
    held = 0
    for seed in range(400):
        a = random.normal(size=60)
        held += covered(paired_bootstrap(a, a - random.exponential(0.1, 60), seed=seed, resamples=400), 0.1)
    assert held >= 368


@pytest.mark.parametrize(
    ("n", "lost", "won"), [(30, 0.1, 0.1), (200, 0.05, 0.01), (500, 0.01, 0.01), (850, 0.004, 0.002)]
)
def test_the_drop_of_right_or_wrong_is_covered_where_few_samples_change(n: int, lost: float, won: float) -> None:
    random = np.random.default_rng(n)
    held = 0
    for _ in range(1000):
        kind = random.choice(3, n, p=[lost, won, 1 - lost - won])
        same = random.random(n) < 0.9
        a, b = np.where(kind == 2, same, kind == 0), np.where(kind == 2, same, kind == 1)
        held += covered(paired_bootstrap(a, b), lost - won)
    assert held >= 930


def test_samples_that_all_agree_do_not_prove_that_no_sample_ever_changes() -> None:
    right = np.ones(100)
    few = paired_bootstrap(right[:5], right[:5])
    many = paired_bootstrap(right, right)
    z2 = NormalDist().inv_cdf(0.975) ** 2
    assert (many.low, many.high) == pytest.approx((-z2 / (100 + z2), z2 / (100 + z2)))
    assert non_inferior((few.low, few.high), 0.05) == "undecided"
    assert non_inferior((many.low, many.high), 0.05) == "non-inferior"


def test_a_relative_drop_is_a_fraction_of_the_baseline() -> None:
    a, b = np.repeat([1.0, 0.0], [80, 20]), np.repeat([1.0, 0.0], [76, 24])
    assert paired_bootstrap(a, b).value == pytest.approx(0.04)
    assert paired_bootstrap(a, b, relative=True).value == pytest.approx(0.05)
    scores = np.linspace(3, 5, 50)
    interval = paired_bootstrap(scores, scores * 0.9, relative=True)
    assert (interval.low, interval.high) == pytest.approx((0.1, 0.1))
    assert paired_bootstrap(np.zeros(9), np.arange(9.0), relative=True).ci95 is None


def test_scores_that_are_not_pairs_are_refused_and_one_pair_bounds_nothing() -> None:
    with pytest.raises(ValueError, match="not pairs"):
        paired_bootstrap([1.0], [1.0, 2.0])
    assert paired_bootstrap([2.5], [2.0]).ci95 is None


def accuracy(outputs: Any, labels: Any) -> float:
    return float(np.mean(np.asarray(outputs) == np.asarray(labels)))


def test_a_recomputed_score_agrees_with_the_mean_of_its_parts() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 300)
    a = np.where(random.random(300) < 0.9, labels, 1 - labels)
    b = np.where(random.random(300) < 0.8, labels, 1 - labels)
    whole = bootstrap_score(accuracy, a, b, labels)
    parts = paired_bootstrap(a == labels, b == labels)
    assert whole.value == pytest.approx(parts.value)
    assert (whole.low, whole.high) == pytest.approx((parts.low, parts.high), abs=0.012)


def test_a_score_takes_ragged_outputs_without_labels() -> None:
    a = [np.ones(1 + i % 4) for i in range(40)]
    b = [x * (0.9 if i % 2 else 0.8) for i, x in enumerate(a)]

    def mean(outputs: Any, labels: Any) -> float:
        assert labels is None
        return float(np.concatenate(outputs).mean())

    interval = bootstrap_score(mean, a, b, None, relative=True, resamples=300)
    assert interval.value == pytest.approx(0.1333, abs=0.01)
    assert 0.1 < interval.low < interval.high < 0.2


def test_a_score_that_fails_on_some_resamples_is_taken_on_the_others() -> None:
    labels = np.array([1, 0, 0, 0, 0, 0])
    outputs = np.linspace(1, 0, 6)

    def area(scores: Any, truth: Any) -> float:
        if len(set(truth.tolist())) < 2:
            raise ValueError("one class only")
        return float(np.mean(scores[truth == 1][:, None] > scores[truth == 0][None, :]))

    assert bootstrap_score(area, outputs, -outputs, labels).ci95 is not None

    def fussy(scores: Any, truth: Any) -> float:
        if len(set(scores.tolist())) < 6:
            raise ValueError("a sample came twice")
        return float(scores.mean())

    assert bootstrap_score(fussy, outputs, -outputs, labels).ci95 is None


def test_a_score_that_no_resample_changes_still_leaves_room_for_what_was_not_seen() -> None:
    labels = np.repeat([1, 0], 50)
    outputs = np.where(np.arange(100) % 10 == 0, 1 - labels, labels)
    interval = bootstrap_score(accuracy, outputs, outputs, labels)
    assert (interval.low, interval.high) == pytest.approx((-0.037, 0.037), abs=1e-3)


def test_a_broken_metric_shows_itself() -> None:
    with pytest.raises(ZeroDivisionError):
        bootstrap_score(lambda outputs, labels: 1 / 0, [1, 2], [1, 2], [1, 2])
    with pytest.raises(ValueError, match="same samples"):
        bootstrap_score(accuracy, [1, 2], [1], [1, 2])


# -- verdicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((-0.4, 0.3), "non-inferior"),
        ((-0.4, 0.5), "non-inferior"),
        ((0.2, 0.7), "undecided"),
        ((0.6, 0.9), "inferior"),
        ((-math.inf, math.inf), "undecided"),
        ((math.nan, math.nan), "undecided"),
        (None, "undecided"),
    ],
)
def test_a_drop_is_within_what_is_allowed_only_where_its_whole_interval_is(interval: Any, verdict: str) -> None:
    assert non_inferior(interval, 0.5) == verdict


def test_four_times_the_samples_are_needed_to_halve_an_interval() -> None:
    assert samples_needed(0.0, (-1.0, 1.0), 0.5, 100) == 400
    assert samples_needed(1.0, (0.0, 2.0), 0.5, 100) == 400  # to show that it is worse
    assert samples_needed(0.1, (-0.1, 0.3), 0.5, 100) == 100
    assert samples_needed(0.5, (0.3, 0.7), 0.5, 100) is None
    assert samples_needed(0.1, None, 0.5, 100) is None


def test_the_samples_named_while_none_has_changed_are_as_many_as_decide() -> None:
    right = np.ones(100)
    interval = paired_bootstrap(right, right)
    needed = samples_needed(0.0, (interval.low, interval.high), 0.005, 100, changed=0)
    assert needed is not None
    assert needed == 765
    enough = paired_bootstrap(np.ones(needed), np.ones(needed))
    assert non_inferior((enough.low, enough.high), 0.005) == "non-inferior"


# -- the Pareto set ---------------------------------------------------------------------------------------------------


def test_the_pareto_set_is_what_nothing_beats_everywhere() -> None:
    points = [(1.0, 10.0), (2.0, 20.0), (2.0, 10.0), (3.0, 20.0), (1.0, 10.0), (0.5, math.nan)]
    assert pareto(points, [False, True]) == (0, 1, 4, 5)
    assert pareto([], [False]) == ()
    with pytest.raises(ValueError, match="zip"):
        pareto([(1.0,)], [False, True])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=20))
def test_everything_outside_the_pareto_set_is_beaten_by_something_inside(points: list[tuple[int, int, int]]) -> None:
    front = pareto(points, [False, True, False])
    assert front
    for index, (a, b, c) in enumerate(points):
        beaten = [
            other
            for other in front
            if points[other] != points[index]
            and points[other][0] <= a
            and points[other][1] >= b
            and points[other][2] <= c
        ]
        assert bool(beaten) != (index in front)
