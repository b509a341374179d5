import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.device import Device
from hasten.diagnose.join import join
from hasten.diagnose.roofline import Roofs, best_us, floors, precision_of, roofs
from hasten.diagnose.rows import rows
from hasten.measurement import Figure
from hasten.model import Operator
from hasten.runtimes.base import OperatorTime

LIMITS = Roofs({"fp32": 100.0, "bf16": 200.0, "int8": 400.0}, 10.0, 50.0, 1_000_000, 1.0)
PRODUCT = Operator("m", "MatMul", 100_000_000, 2_000_000, 1_000_000)


def device(**limits: float) -> Device:
    return Device(
        "test",
        cpus=(0, 1),
        caches_bytes={"L1d": 1, "L2": 1000},
        limits={k: Figure(v, "", "") for k, v in limits.items()},
    )


def test_the_highest_floor_is_what_bounds_an_operator():
    assert floors(1e9, 10, "fp32", LIMITS).by == "compute"
    assert floors(10, 1e9, "fp32", LIMITS).by == "memory"
    assert floors(10, 10, "fp32", LIMITS).by == "overhead"


def test_floors_follow_the_units():
    found = floors(100e9, 10e9, "fp32", LIMITS)
    assert found.compute_us == pytest.approx(1e6)
    assert found.memory_us == pytest.approx(1e6)


def test_without_limits_nothing_is_claimed():
    assert floors(1, 1, "fp32", Roofs({})) is None


def test_data_that_fits_the_cache_is_under_the_caches_roof():
    assert LIMITS.bandwidth(1_000_000) == 50.0
    assert LIMITS.bandwidth(1_000_001) == 10.0


def test_a_rate_that_was_not_taken_falls_back_to_a_wider_precision_never_to_a_narrower_one():
    limits = Roofs({"fp32": 100.0, "int8": 400.0})
    assert limits.rate("bf16") == 100.0
    assert Roofs({"int8": 400.0}).rate("fp32") is None


def test_a_stream_with_half_the_cores_is_under_half_the_roof():
    found = roofs(device(gemm_fp32_gflops=100, gemm_int8_gops=400, read_gb_s=20, operator_us=2), 0.5)
    assert found.gflops == {"fp32": 50.0, "int8": 200.0}
    assert found.memory_gb_s == 10.0
    assert found.cache_bytes == 500
    assert found.operator_us == 2


@pytest.mark.parametrize(
    ("executed", "kind", "precision"),
    [
        ("brgemm_avx512_amx_i8", "FullyConnected", "int8"),
        ("jit_avx512_u8", "Convolution", "int8"),
        ("brgemm_avx512_bf16", "FullyConnected", "bf16"),
        ("acl_f16", "Convolution", "fp16"),
        ("CPU float", "Conv", "fp32"),
        ("CPU float", "DynamicQuantizeMatMul", "int8"),
        ("", "", "fp32"),
    ],
)
def test_precision_is_read_from_the_kernel(executed, kind, precision):
    assert precision_of(executed, kind) == precision


def test_the_best_time_gets_lower_with_the_precision_and_ignores_what_can_be_fused():
    relu = Operator("r", "Relu", 1000, 10_000_000)
    best = {p: best_us([PRODUCT, relu], p, LIMITS) for p in ("fp32", "bf16", "int8")}
    assert best["fp32"] > best["bf16"] > best["int8"] > 0
    assert best["fp32"] < best_us([PRODUCT], "fp32", LIMITS) + 1
    assert best_us([PRODUCT], "fp16", LIMITS) is None


def test_the_best_time_is_never_above_the_time_of_a_run_at_the_roof():
    run = floors(PRODUCT.flops, PRODUCT.bytes, "fp32", LIMITS).us
    assert best_us([PRODUCT], "fp32", LIMITS) <= run


def test_a_row_says_rates_share_and_fraction_of_the_roof():
    (row,) = rows(join([OperatorTime("m", "MatMul", 2000.0, "gemm_f32")], [PRODUCT]), 4000.0, LIMITS)
    assert row.share == 0.5
    assert row.gflops == pytest.approx(50.0)
    assert row.gb_s == pytest.approx(1.0)
    assert row.intensity == 50
    assert (row.by, row.roof, row.roof_unit) == ("compute", 100.0, "GFLOP/s")
    assert row.fraction == pytest.approx(0.5)


def test_bytes_follow_the_precision_that_was_executed():
    (row,) = rows(join([OperatorTime("m", "MatMul", 100.0, "brgemm_i8")], [PRODUCT]), 100.0, LIMITS)
    assert row.bytes == PRODUCT.bytes // 4
    assert row.precision == "int8"


def test_a_quantised_operator_is_counted_at_its_own_size():
    (row,) = rows(
        join([OperatorTime("q", "QLinearConv", 100.0)], [Operator("q", "QLinearConv", 10**8, 4000)]), 100.0, LIMITS
    )
    assert row.bytes == 4000
    assert row.precision == "int8"


def test_an_inserted_reorder_is_data_movement_and_an_unknown_kernel_is_unknown():
    found = rows(join([OperatorTime("a", "Reorder", 90.0), OperatorTime("b", "Magic", 80.0)], []), 200.0, LIMITS)
    assert [row.by for row in found] == ["memory", "unknown"]
    assert all(row.fraction is None and row.gflops is None for row in found)


@given(st.lists(st.floats(0.1, 1e5), min_size=1, max_size=9), st.floats(0.1, 1e6))
def test_shares_never_add_up_to_more_than_the_run(times, wall):
    found = rows(join([OperatorTime(str(i), "Relu", t) for i, t in enumerate(times)], []), wall, LIMITS)
    assert sum(row.share for row in found) <= 1 + 1e-9
    assert list(found) == sorted(found, key=lambda row: -row.microseconds)
