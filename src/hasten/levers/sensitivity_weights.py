"""The sensitivity of a language model's weights: what its texts lose when one group of products has few bits.

The weights become inputs of the graph: it is compiled once, and a pass with other weights costs a pass.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import exp
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed
from hasten.levers.base import Case
from hasten.levers.grouping import MOST, Group, Node, groups_of
from hasten.levers.modelfile import is_constant, part_of, read_openvino
from hasten.levers.prediction import precision_of
from hasten.levers.weights_openvino import numbers
from hasten.model import Model
from hasten.recipe import Step
from hasten.variant import Variant

if TYPE_CHECKING:
    import numpy as np

    from hasten.isolate import Scope

EIGHT, FOUR = "weights8", "weights4"
TOKENS, LEAST_TOKENS = 192, 8
"""A pass goes over so many tokens of your texts, laid end to end."""
FEWEST_GROUPS = 6
LARGEST = 1_500_000_000
"""Weights are held in fp32, twice."""
LITTLE = 0.1
"""8 bits lose next to nothing: below this share of what 4 bits lose it is shared out among the groups by their size."""


def measure(
    case: Case, before: Variant, step: Step, widths: Mapping[str, Variant], seconds: float, scope: Scope
) -> dict[str, Any]:
    """What `levers.sensitivity` adds to its table: kind, samples, levels, full, other_us, groups.

    `widths` are the variants with all weights in 8 and in 4 bits, by level; all passes take about `seconds`.
    """
    model = part_of(before, step)
    ids = tokens_of(case)
    scope.progress(None, "compiling the model with its weights as inputs")
    graph = WeightsGraph(model, {level: part_of(variant, step) for level, variant in widths.items()})
    reference = graph.logits(ids)  # warms up as well
    start = perf_counter()
    full = {level: divergence(reference, graph.logits(ids, graph.names, level), ids) for level in widths}
    passes = (perf_counter() - start) / len(widths)
    shared = full[EIGHT][0] < LITTLE * full[FOUR][0]
    measured = [FOUR] if shared else [FOUR, EIGHT]
    groups = graph.groups(max(FEWEST_GROUPS, min(MOST, int(seconds / passes / len(measured)))))
    sizes = {group.name: sum(graph.size(name) for name in group.nodes) for group in groups}
    found: dict[str, dict[str, float]] = {group.name: {} for group in groups}
    start = perf_counter()
    for number, group in enumerate(groups):
        if perf_counter() - start > 3 * seconds:  # those that are left may each have lost what the others did not
            for level in measured:
                rest = max(0.0, full[level][0] - sum(each.get(level, 0.0) for each in found.values()))
                for late in groups[number:]:
                    found[late.name][level] = rest
            break
        scope.progress(number / len(groups), f"sensitivity of the weights of {group.name}")
        for level in measured:
            found[group.name][level] = divergence(reference, graph.logits(ids, group.nodes, level), ids)[0]
    if shared:
        for name, size in sizes.items():
            found[name][EIGHT] = full[EIGHT][0] * size / sum(sizes.values())
    del graph
    scope.progress(None, "timing every operator")
    kept = precision_of(case)
    times, other = _times(case, {kept: before, **widths}, step, groups, ids)
    return {
        "kind": "divergence",
        "samples": len(ids),
        "levels": [kept, EIGHT, FOUR],
        "full": {"loss": full[FOUR][0], "seen": full[FOUR][1]},
        "other_us": other,
        "groups": [
            {
                "name": group.name,
                "nodes": list(group.nodes),
                "loss": {kept: 0.0, **found[group.name]},
                "seen": found[group.name][FOUR],
                "time_us": {level: times[level][group.name] for level in times},
            }
            for group in groups
        ],
    }


class WeightsGraph:
    """An OpenVINO decoder whose matrix products take their weights as inputs."""

    def __init__(self, before: Model, widths: Mapping[str, Model]) -> None:
        import numpy as np
        import openvino as ov
        from openvino import opset13 as op

        model = read_openvino(before)
        self._widths = {level: read_openvino(each) for level, each in widths.items()}  # owns what is below
        self._made = {
            level: {each.get_friendly_name(): each for each in graph.get_ops() if each.get_type_name() == "MatMul"}
            for level, graph in self._widths.items()
        }
        products = [
            each
            for each in model.get_ordered_ops()
            if each.get_type_name() == "MatMul"
            and each.input_value(1).get_partial_shape().rank.get_length() == 2
            and is_constant(each.input_value(1).get_node())
            and all(each.get_friendly_name() in made for made in self._made.values())
        ]
        self.names = tuple(each.get_friendly_name() for each in products)
        if not products:
            raise Failed("the model has no matrix product with constant weights")
        if before.facts.parameters > LARGEST:
            raise Failed(f"{before.facts.parameters:,} weights are too many to measure group by group")
        self._own: dict[str, np.ndarray] = {}
        inputs = []
        for each in products:
            name = each.get_friendly_name()
            self._own[name] = _plain(numbers(each.input_value(1).get_node()))
            made = op.parameter(list(self._own[name].shape), np.float32, name)
            made.output(0).get_tensor().set_names({_input(name)})
            each.input(1).replace_source_output(made.output(0))
            inputs.append(made)
        model.add_parameters(inputs)
        model.validate_nodes_and_infer_types()
        compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        self._asks = {name for port in model.inputs for name in port.get_names()}
        self._request = compiled.create_infer_request()

    def size(self, name: str) -> int:
        return self._own[name].size

    def groups(self, most: int) -> tuple[Group, ...]:
        return groups_of([Node(name, (), True, True) for name in self.names], most)[0]

    def logits(self, ids: np.ndarray, changed: Collection[str] = (), level: str = "") -> np.ndarray:
        """Logits [length, vocabulary] of token numbers [length], with the weights of `changed` as `level` has them."""
        import numpy as np
        import openvino as ov

        some = set(changed)
        weights = {
            name: _plain(numbers(self._made[level][name].input_value(1).get_node())) if name in some else own
            for name, own in self._own.items()
        }
        for name, array in weights.items():
            self._request.set_tensor(_input(name), ov.Tensor(array, shared_memory=True))
        fed = {
            "input_ids": ids[None],
            "attention_mask": np.ones((1, len(ids)), np.int64),
            "position_ids": np.arange(len(ids), dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self._request.reset_state()
        self._request.infer({name: array for name, array in fed.items() if name in self._asks})
        return np.array(self._request.get_output_tensor(0).data[0])


def divergence(reference: np.ndarray, logits: np.ndarray, ids: np.ndarray) -> tuple[float, float]:
    """(loss, seen) of logits [length, vocabulary] beside those of the reference.

    The mean Kullback-Leibler divergence of the next token in nats, which is small, smooth and adds up where the change
    of few texts' perplexity is noise; and the factor of that perplexity less 1.
    """
    import numpy as np

    before, after = _log_softmax(reference), _log_softmax(logits)
    if not np.isfinite(after).all():
        return 1e9, 1.0
    loss = float((np.exp(before) * (before - after)).sum(axis=-1).mean())
    following = ids[1:, None]
    change = np.take_along_axis(before[:-1] - after[:-1], following, axis=-1).mean()
    return max(0.0, loss), exp(min(20.0, float(change))) - 1.0


def tokens_of(case: Case) -> np.ndarray:
    """The first tokens of the texts that take no part in confirming, laid end to end."""
    import numpy as np

    from hasten.data import SampleSet
    from hasten.runner.generate import PROMPT
    from hasten.runtimes.openvino_decoder import OpenVinoTokenizer

    if case.workload.tokenizer is None:
        raise Failed("the model has no tokenizer")
    samples, tokenizer = SampleSet.open(case.workload.samples.path), OpenVinoTokenizer(case.workload.tokenizer.path)
    found: list[np.ndarray] = []
    for index in (*case.split.calibration, *case.split.selection):
        found.append(tokenizer.encode(str(samples[index][PROMPT])))
        if sum(map(len, found)) >= TOKENS:
            break
    ids = np.concatenate(found)[:TOKENS] if found else np.zeros(0, np.int64)
    if len(ids) < LEAST_TOKENS:
        raise Failed("there is too little text to measure with", "give more texts")
    return ids


def _times(
    case: Case, variants: Mapping[str, Variant], step: Step, groups: Sequence[Group], ids: np.ndarray
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Microseconds of each group in a decoding step, by level, and of what belongs to no group."""
    from hasten.levers.sensitivity import attributed
    from hasten.runtimes import Settings
    from hasten.runtimes.openvino_decoder import OpenVinoLanguage

    settings = Settings.from_recipe(case.recipe.runtime)
    owner = {name: group.name for group in groups for name in group.nodes}
    times, other = {}, {}
    for level, variant in variants.items():
        decoder = OpenVinoLanguage().decoder(part_of(variant, step), settings)
        times[level], other[level] = attributed(decoder.operators(ids[None, :32]), groups, owner)
        decoder.close()
        if not sum(times[level].values()):
            raise Failed("the profile of openvino names none of the model's products")
    return times, other


def _input(name: str) -> str:
    return f"weights of {name}"


def _plain(array: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.ascontiguousarray(array, np.float32)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    import numpy as np

    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
