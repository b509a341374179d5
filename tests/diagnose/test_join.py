from hypothesis import given
from hypothesis import strategies as st

from hasten.diagnose.join import coverage, join
from hasten.model import Operator
from hasten.runtimes.base import OperatorTime

CONV = Operator("conv", "Conv", 1000, 400, 100, ("c",))
BIAS = Operator("bias", "Add", 10, 210, 10, ("b",))
RELU = Operator("relu", "Relu", 10, 200, 0, ("r",))


def test_an_operator_is_found_by_its_name_and_by_the_tensor_that_it_writes():
    by_name, by_tensor = join([OperatorTime("conv", "Convolution", 5.0), OperatorTime("r", "Relu", 1.0)], [CONV, RELU])
    assert by_name.operators == (CONV,)
    assert by_tensor.operators == (RELU,)


def test_fused_operators_move_their_weights_and_what_their_largest_member_moves():
    fused = OperatorTime("c_fused", "Convolution", 5.0, sources=("conv", "bias", "relu"))
    (row,) = join([fused], [CONV, BIAS, RELU])
    assert row.kind == "Conv"
    assert row.flops == 1020
    assert row.bytes == 100 + 10 + 300


def test_a_reorder_that_carries_a_convolutions_name_does_not_take_its_arithmetic():
    reorder = OperatorTime("reorder", "Reorder", 50.0, sources=("conv",))
    kernel = OperatorTime("kernel", "Convolution", 5.0, sources=("conv",))
    moved, computed = join([reorder, kernel], [CONV])
    assert moved.flops is None
    assert computed.flops == 1000


def test_when_two_kernels_name_one_operator_the_heavier_looking_one_gets_it():
    light = OperatorTime("bias", "Eltwise", 50.0, sources=("conv",))
    kernel = OperatorTime("kernel", "Convolution", 5.0, sources=("conv",))
    assert [row.flops for row in join([light, kernel], [CONV])] == [None, 1000]


def test_a_convolution_renamed_by_folding_is_found_before_the_addition_that_kept_its_name():
    other = Operator("conv2", "Conv", 7000, 500, 100, ("c2",))
    rest = Operator("bias2", "Add", 10, 210, 10, ("b2",))
    times = [
        OperatorTime("Multiply_7", "Convolution", 9.0, sources=("Multiply_7", "bias2")),
        OperatorTime("Multiply_3", "Convolution", 5.0, sources=("Multiply_3", "bias")),
    ]
    second, first = join(times, [CONV, BIAS, other, rest])
    assert second.flops == 7010
    assert first.flops == 1010


def test_suffixes_that_runtimes_append_do_not_hide_an_operator():
    names = ["conv:0", "conv/WithoutBiases", "conv/fq_output_0", "conv_nchwc", "conv/DequantizeLinear/scale"]
    for name in names:
        (row,) = join([OperatorTime(name, "Convolution", 1.0)], [CONV])
        assert row.operators == (CONV,), name


def test_parameters_and_results_are_not_operators():
    assert join([OperatorTime("x", "Parameter", 1.0), OperatorTime("y", "Result", 1.0)], [CONV]) == ()


names = st.sampled_from("abcdefgh")


@given(
    st.lists(st.builds(OperatorTime, names, st.sampled_from(["Conv", "Relu", "Reorder"]), st.floats(0, 1e6),
                       sources=st.lists(names, max_size=3).map(tuple)), max_size=8),
    st.lists(st.builds(Operator, names, st.sampled_from(["Conv", "Relu"]), st.integers(0, 1000), st.integers(0, 99)),
             max_size=8),
)  # fmt: skip
def test_no_arithmetic_is_counted_twice(times, operators):
    joined = join(times, operators)
    assert len(joined) == len(times)
    assert sum(len(row.operators) for row in joined) <= len(operators)
    assert 0 <= coverage(joined, operators) <= 1
