"""Reading ONNX Runtime's profile events."""

from __future__ import annotations

from hasten.runtimes.onnxruntime_profile import times


def event(name, ts, dur, **args):
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": ts, "dur": dur, "args": {"op_name": "Conv", **args}}


def test_the_first_run_does_not_count_and_loops_are_summed():
    events = [
        {"cat": "Session", "name": "model_run", "ts": 0, "dur": 100},
        event("a", 10, 80),
        {"cat": "Session", "name": "model_run", "ts": 200, "dur": 50},
        event("a", 210, 10),
        event("a", 225, 10, input_type_shape=[{"float": [1]}], provider="CPUExecutionProvider"),
        {"cat": "Session", "name": "model_run", "ts": 300, "dur": 50},
        event("b", 310, 8),
        {"cat": "Session", "name": "session_initialization", "ts": 0, "dur": 9},
    ]
    found = times(events, {"a": ("y",)})
    assert [(o.name, o.microseconds, o.executed, o.sources) for o in found] == [
        ("a", 10.0, "CPU float", ("y",)),
        ("b", 4.0, "", ()),
    ]


def test_fused_nodes_map_back_to_the_models_own_names():
    events = [
        {"cat": "Session", "name": "model_run", "ts": 0, "dur": 1},
        {"cat": "Session", "name": "model_run", "ts": 2, "dur": 9},
        event("conv_out_nchwc", 3, 2),
        event("scores/MatmulTransposeFusion/", 5, 1),
    ]
    found = times(events, {"conv_out_nchwc": ("reorder_token_3",), "scores/MatmulTransposeFusion/": ("s",)})
    assert [o.sources for o in found] == [("conv_out",), ("scores", "s")]


def runs(count, *events):
    return [{"cat": "Session", "name": "model_run", "ts": 100 * i, "dur": 50} for i in range(count)] + list(events)


def test_one_interrupted_run_does_not_make_an_operator_slow():
    events = runs(6, *(event("a", 100 * i + 5, 4000 if i == 3 else 10) for i in range(6)))
    (found,) = times(events, {})
    assert found.microseconds == 10.0


def test_operators_never_add_up_to_more_than_the_run():
    events = runs(3, *(event(name, 100 * i + 5, dur) for i in range(3) for name, dur in (("a", 60), ("b", 40))))
    assert [o.microseconds for o in times(events, {})] == [30.0, 20.0]


def test_nodes_without_a_name_are_known_by_their_tensors_in_the_order_in_which_they_run():
    events = runs(2, event("Conv_7", 105, 9), event("Conv_3", 101, 2))
    assert {o.name: o.sources for o in times(events, {}, {"Conv": [("a",), ("b",)]})} == {
        "Conv_3": ("a",),
        "Conv_7": ("b",),
    }
    assert not any(o.sources for o in times(events, {}, {"Conv": [("a",)]})), "a guess would be worse than nothing"
