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
