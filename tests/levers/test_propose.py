"""What levers propose on paper: best first, never what cannot win, never what the recipe has, and why not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from lever_models import cpu, matmuls, paper_case

from hasten.goal import Goal
from hasten.levers import all_levers
from hasten.levers.dynamic_int8 import DynamicInt8
from hasten.levers.execution import Execution
from hasten.levers.fuse import Fuse
from hasten.levers.int8 import Int8
from hasten.levers.layout import Layout
from hasten.levers.precision import Precision
from hasten.levers.prediction import (
    MATMULS,
    amdahl,
    faster_arithmetic,
    looks_like_transformer,
    share_of,
)
from hasten.levers.runtime import RuntimeChoice
from hasten.levers.weight_only import WeightOnly
from hasten.measurement import Figure, Trial
from hasten.model import Operator
from hasten.recipe import Recipe, Step

CNN = {"Conv": 10, "Relu": 9, "Gemm": 1}
ENCODER = {"MatMul": 48, "LayerNormalization": 13, "Softmax": 6, "Gelu": 6}
ORT = Recipe(runtime={"name": "onnxruntime"})
OV = Recipe(runtime={"name": "openvino", "precision": "fp32"})
MINE = (Fuse(), Int8(), DynamicInt8(), WeightOnly(), Precision(), RuntimeChoice(), Layout())


def test_a_proposal_extends_the_recipe_and_says_why() -> None:
    for kinds in (CNN, ENCODER):
        for recipe in (Recipe(), ORT, OV):
            case = paper_case(kinds, recipe)
            for lever in MINE:
                proposals = list(lever.propose(case))
                assert len({p.recipe.id for p in proposals}) == len(proposals)
                for proposal in proposals:
                    assert proposal.recipe != recipe
                    assert proposal.recipe.steps[: len(recipe.steps)] == recipe.steps
                    assert proposal.lever == lever.name
                    assert proposal.why
                    assert proposal.gain.source
                    assert 1.0 <= proposal.gain.factor <= 8.0


def test_a_lever_that_proposes_nothing_says_why_not() -> None:
    for kinds in (CNN, ENCODER, {"Relu": 1}):
        for recipe in (ORT, OV, ORT.with_step(Step("int8")), OV.with_step(Step("weight_only"))):
            case = paper_case(kinds, recipe)
            for lever in MINE:
                assert bool(list(lever.propose(case))) == (lever.refuse(case) is None), (lever.name, lever.refuse(case))


def test_proposing_imports_no_heavy_library() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests/levers')\n"
        "from hasten.levers import all_levers\n"
        "levers = all_levers()\n"
        "heavy = {'onnx', 'onnxruntime', 'openvino', 'nncf', 'torch', 'scipy', 'onnxslim'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert {'fuse', 'int8', 'sensitivity', 'weight_only', 'layout'} <= set(levers)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_int8_waits_until_arithmetic_bounds_the_model() -> None:
    case = replace(paper_case(CNN, OV), profile={"Conv": 0.02, "Reorder": 0.98})
    assert not list(Int8().propose(case))
    assert "roofline" in (Int8().refuse(case) or "")


def test_int8_treats_attention_as_attention_and_gets_careful_once_quality_was_lost() -> None:
    case = paper_case(ENCODER, OV)
    (first,) = Int8().propose(case)
    assert first.recipe.steps[-1].options["transformer"] is True
    lost = Trial("t", first.recipe, "rejected", "quality drops by 3%")
    again = [p.recipe.steps[-1].options for p in Int8().propose(replace(case, trials=(lost,)))]
    assert len(again) == 3
    assert any("bias_correction" in options for options in again)


def test_nothing_is_quantised_twice() -> None:
    for recipe in (OV.with_step(Step("int8")), ORT.with_step(Step("dynamic_int8"))):
        for lever in (Int8(), DynamicInt8(), WeightOnly(), Fuse()):
            assert not list(lever.propose(paper_case(ENCODER, recipe)))
    brought = paper_case({"MatMul": 3, "QuantizeLinear": 6, "DequantizeLinear": 6}, OV)
    assert not list(Int8().propose(brought))


def test_dynamic_int8_is_for_matrix_products_on_onnx_runtime() -> None:
    assert list(DynamicInt8().propose(paper_case(ENCODER, ORT)))
    assert not list(DynamicInt8().propose(paper_case(ENCODER, OV)))
    assert not list(DynamicInt8().propose(paper_case({"Conv": 9}, ORT)))


def test_bf16_is_proposed_where_the_processor_multiplies_it_faster() -> None:
    fast, slow = cpu(100, 400), cpu(100, 105)
    assert [p.recipe.runtime["precision"] for p in Precision().propose(paper_case(CNN, OV, fast))] == ["bf16"]
    assert not list(Precision().propose(paper_case(CNN, OV, slow)))
    assert not list(Precision().propose(paper_case(CNN, ORT, fast)))


def test_fp16_is_never_proposed_for_a_transformer() -> None:
    device = replace(cpu(), limits={**cpu().limits, "gemm_fp16_gflops": cpu(bf16=900).limits["gemm_bf16_gflops"]})
    assert "fp16" in [p.recipe.runtime["precision"] for p in Precision().propose(paper_case(CNN, OV, device))]
    assert "fp16" not in [p.recipe.runtime["precision"] for p in Precision().propose(paper_case(ENCODER, OV, device))]


def test_another_runtime_is_proposed_with_its_precision_written_down() -> None:
    proposals = list(RuntimeChoice().propose(paper_case(CNN, ORT)))
    assert [p.recipe.runtime for p in proposals] == [
        {"name": "openvino", "precision": "bf16"},
        {"name": "openvino", "precision": "fp32"},
    ]
    assert not list(RuntimeChoice().propose(paper_case(CNN, ORT, runtimes=("onnxruntime",))))
    assert not list(RuntimeChoice().propose(paper_case(CNN, ORT.with_step(Step("int8")))))


def test_iree_is_proposed_with_a_low_prior_and_last() -> None:
    case = paper_case(CNN, ORT, runtimes=("onnxruntime", "openvino", "iree"))
    proposals = list(RuntimeChoice().propose(case))
    assert [(p.recipe.runtime["name"], p.late) for p in proposals] == [
        ("openvino", False),
        ("openvino", False),
        ("iree", True),
    ]
    assert proposals[-1].gain.factor < 1
    assert [p.late for p in RuntimeChoice().propose(replace(case, runtimes=("iree",)))] == [False]
    back = list(RuntimeChoice().propose(replace(case, recipe=proposals[-1].recipe)))
    assert "onnxruntime" in [p.recipe.runtime["name"] for p in back]


def test_openvino_is_tried_once_for_a_converted_estimator() -> None:
    case = paper_case({"TreeEnsembleClassifier": 1}, ORT)
    (once,) = RuntimeChoice().propose(case)
    assert once.recipe.runtime == {"name": "openvino", "precision": "fp32"}
    failed = Trial("t", once.recipe, "failed", "openvino cannot load forest.onnx: it has no TreeEnsembleClassifier")
    after = replace(case, recipe=ORT.edit("runtime", streams=2), trials=(failed,))
    assert not list(RuntimeChoice().propose(after))
    assert list(RuntimeChoice().propose(replace(paper_case(CNN, ORT.with_step(Step("fuse"))), trials=(failed,))))


def test_weights_are_compressed_where_reading_them_takes_the_time() -> None:
    bound = paper_case(ENCODER, OV, operators=matmuls(10))
    factors = [p.gain.factor for p in WeightOnly().propose(bound)]
    assert len(factors) == 2
    assert all(factor > 1.5 for factor in factors)
    free = paper_case(ENCODER, OV, operators=matmuls(10, flops=10_000_000_000))
    assert not list(WeightOnly().propose(free))
    small = paper_case(ENCODER, OV, operators=matmuls(10, flops=10_000_000_000), goal=Goal.parse("size"))
    assert [p.recipe.steps[-1].options["bits"] for p in WeightOnly().propose(small)] == [4, 8]


def test_channels_last_is_for_tensor_cores_alone() -> None:
    assert not list(Layout().propose(paper_case(CNN, ORT)))
    assert "by itself" in (Layout().refuse(paper_case(CNN, OV)) or "")
    gpu = ORT.edit("runtime", providers=["CUDAExecutionProvider"])
    (proposal,) = Layout().propose(paper_case(CNN, gpu))
    assert proposal.recipe.runtime["provider_options"] == {"CUDAExecutionProvider": {"prefer_nhwc": "1"}}
    assert not list(Layout().propose(paper_case(CNN, proposal.recipe)))


@pytest.mark.parametrize(
    ("kinds", "transformer"),
    [(ENCODER, True), (CNN, False), ({"MatMul": 9, "ReduceMean": 8, "Sqrt": 4, "Softmax": 2}, True)],
)
def test_transformers_are_known_by_their_operators(kinds: dict[str, int], transformer: bool) -> None:
    assert looks_like_transformer(paper_case(kinds)) == transformer


def test_a_prediction_follows_amdahl_from_the_measured_rates() -> None:
    case = replace(paper_case(CNN, OV), profile={"Convolution": 0.5, "Eltwise": 0.5})
    gain = faster_arithmetic(case, frozenset({"convolution"}), "int8")
    assert gain.factor == pytest.approx(amdahl(0.5, 8.0))


def test_without_a_profile_a_prediction_is_sober_and_says_so() -> None:
    many, few = (replace(paper_case({"MatMul": 9}, OV), operators=matmuls(count)) for count in (9, 1))
    for case in (many, few, paper_case({"MatMul": 9}, OV)):
        gain = faster_arithmetic(case, MATMULS, "int8")
        assert gain.factor <= 3.0
        assert "on paper" in gain.source


def test_operators_of_one_name_all_count_and_each_takes_its_start() -> None:
    device = replace(cpu(), limits={**cpu().limits, "operator_us": Figure(50.0, "us", "measured")})
    small = tuple(Operator("", kind, 1000, 1000) for kind in ("Relu", "Relu", "Relu", "MatMul"))
    case = replace(paper_case({"MatMul": 1, "Relu": 3}, OV, device), operators=small)
    assert share_of(case, MATMULS) == pytest.approx(0.25)


def test_a_plain_perceptron_is_not_called_convolutional() -> None:
    case = paper_case({"Gemm": 3, "Relu": 2}, ORT)
    words = " ".join(p.why for lever in (*MINE, Execution()) for p in lever.propose(case))
    assert "INT8 weights" in words
    assert "convolution" not in words
    assert "1 batches" not in words


def test_every_registered_lever_keeps_the_protocol() -> None:
    for name, lever in all_levers().items():
        assert lever.name == name
        assert isinstance(lever.needs, frozenset)
