"""NNCF's accuracy control: it quantises, judges, and gives operators their precision back until the drop is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def quantise(payload: dict[str, Any], scope: Any) -> str:
    """Worker function: write the model to `payload["into"]`/model.xml.

    `payload`: model, samples, metric, output (index), calibration and selection (indices), baseline (outputs at fp32 of
    the selection), name (of the judged output), max_drop (in the metric's own unit), transformer.
    """
    import numpy as np

    from hasten.data import SampleSet
    from hasten.levers.int8_openvino import import_nncf, silent
    from hasten.levers.modelfile import read_openvino, save_openvino
    from hasten.measure.fidelity import FIDELITIES
    from hasten.measure.metrics import FORMULAS
    from hasten.measure.outputs import load, stacked
    from hasten.model import Model

    nncf = import_nncf()
    samples = SampleSet.open(Path(payload["samples"]))
    model = Model.from_json(payload["model"])
    fidelity = payload["metric"] in FIDELITIES
    formula = FIDELITIES[payload["metric"]] if fidelity else FORMULAS[payload["metric"]]
    truth = stacked(load(Path(payload["baseline"])), payload["name"]) if fidelity else samples.labels
    names = [tensor.name for tensor in model.signature.inputs]

    def batch(index: int) -> dict[str, Any]:
        return {name: samples[index][name][None] for name in names}

    def judge(compiled: Any, numbers: Any) -> tuple[float, None]:
        chosen = list(numbers)
        outputs = np.stack([compiled(batch(payload["selection"][i]))[payload["name"]][0] for i in chosen])
        wanted = [truth[i] if fidelity else truth[payload["selection"][i]] for i in chosen]
        found = formula.final(formula.reduce(outputs, np.stack(wanted)), np.stack(wanted))
        return (found if formula.higher_is_better else 1 - found), None

    with silent():
        quantised = nncf.quantize_with_accuracy_control(
            read_openvino(model),
            nncf.Dataset(payload["calibration"], batch),
            nncf.Dataset(list(range(len(payload["selection"])))),
            judge,
            max_drop=payload["max_drop"],
            drop_type=nncf.DropType.ABSOLUTE,
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=len(payload["calibration"]),
            model_type=nncf.ModelType.TRANSFORMER if payload["transformer"] else None,
        )
    path = Path(payload["into"]) / "model.xml"
    path.parent.mkdir(parents=True, exist_ok=True)
    return str(save_openvino(quantised, path))
