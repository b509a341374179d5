import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.costs.memory import activations_bytes, all_activations_bytes, weights_bytes
from hasten.costs.roofline import Roof, attainable_gflops, bound, bound_of, total_us
from hasten.model import Operator

ROOF = Roof(peak_gflops=1000.0, bandwidth_gb_s=20.0, dispatch_us=2.0)
positive = st.floats(1e-3, 1e9)


@given(positive)
def test_the_attainable_rate_is_below_both_roofs(intensity: float) -> None:
    rate = attainable_gflops(intensity, ROOF)
    assert rate <= ROOF.peak_gflops
    assert rate <= intensity * ROOF.bandwidth_gb_s * (1 + 1e-12)
    assert rate == pytest.approx(min(ROOF.peak_gflops, intensity * ROOF.bandwidth_gb_s))


def test_the_roofs_meet_at_the_ridge() -> None:
    assert ROOF.ridge == 50.0
    assert attainable_gflops(ROOF.ridge, ROOF) == ROOF.peak_gflops


@given(st.floats(0, 1e12), st.floats(0, 1e12))
def test_more_work_never_takes_less_time(flops: float, moved: float) -> None:
    less, more = bound(flops, moved, ROOF), bound(flops * 2, moved * 2, ROOF)
    assert ROOF.dispatch_us <= less.us <= more.us


@pytest.mark.parametrize(
    ("flops", "moved", "by"), [(1e9, 1e3, "compute"), (1e3, 1e8, "memory"), (1e3, 1e3, "overhead")]
)
def test_work_is_classed_by_what_bounds_it(flops: float, moved: float, by: str) -> None:
    assert bound(flops, moved, ROOF).by == by


def test_an_operator_takes_its_bound_and_a_chain_takes_the_sum() -> None:
    heavy = Operator("matmul", "MatMul", flops=2_000_000_000, bytes=1000)
    light = Operator("add", "Add", flops=10, bytes=200_000)
    assert bound_of(heavy, ROOF).us == pytest.approx(2000.0)
    assert bound_of(light, ROOF).us == pytest.approx(10.0)
    assert bound_of(light, ROOF, element_scale=0.5).us == pytest.approx(5.0)
    assert total_us([heavy, light], ROOF) == pytest.approx(2010.0)


def test_a_roof_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        Roof(0.0, 1.0)


def test_weights_take_their_precisions_bytes() -> None:
    assert weights_bytes(1000).value == 4000
    assert weights_bytes(1000, "int8").value == 1000
    assert weights_bytes(1000, "int4").value == 500
    assert weights_bytes(1000).unit == "B"


def test_a_chain_keeps_its_two_largest_neighbours_alive() -> None:
    chain = [
        Operator(f"op{i}", "Conv", 0, 0, output_shape=shape) for i, shape in enumerate([(1, 10), (1, 30), (1, 20)])
    ]
    assert activations_bytes(chain).value == (30 + 20) * 4
    assert all_activations_bytes(chain, "bf16").value == 60 * 2
    assert activations_bytes([]).value == 0


def test_an_unknown_shape_counts_as_nothing() -> None:
    assert all_activations_bytes([Operator("op", "Loop", 0, 0)]).value == 0
