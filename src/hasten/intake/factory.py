"""Models that come as code: `module:function` makes the module, here, in a worker process."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, HastenError, InvalidInput
from hasten.formats import pt2
from hasten.intake import classic
from hasten.intake.module import (
    Named,
    Untraceable,
    arguments,
    described,
    evaluating,
    export,
    first_line,
    from_example,
    run_probes,
)
from hasten.isolate import Limits, Scope, WorkerFailed, resolve, run
from hasten.model import Facts, Model, Signature

if TYPE_CHECKING:
    import numpy as np

SECONDS = 1800.0
LOOKED_AT = 32
"""So many samples are looked at to see which axes differ."""
ROWS = 2, 3
"""Rows of the probes: torch.export takes an axis of 1 for a constant."""


def load(
    name: str,
    data: str | None,
    into: Path,
    *,
    weights: str | None = None,
    reading: Mapping[str, Any] | None = None,
    on_progress: Callable[[float | None, str], None] | None = None,
) -> Model:
    """Call the factory in a worker and export what it makes.

    `name` is `module:function`, which returns an `nn.Module`, or (module, example inputs with batch axis); or the path
    of a trusted .pt2 file. Without an example, the first samples of `data` tell the inputs. `weights` is a state dict
    (.safetensors, or .pt read without running code) that is loaded into the module first. A fitted estimator becomes an
    ONNX file, and `reading` says how the samples are read that it is compared on.
    """
    payload = {"name": name, "data": data, "into": str(into), "weights": weights, "reading": dict(reading or {})}
    try:
        return Model.from_json(
            run("hasten.intake.factory:make", payload, Limits(seconds=SECONDS), on_progress=on_progress)
        )
    except WorkerFailed as error:
        raise Failed(
            f"making the model with {name} failed: {error.outcome.reason}",
            "make it, and run it on one sample, in Python: the same happens there",
        ) from None


def make(payload: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """Worker function: call the factory, export the module, or convert the estimator, and describe what it became."""
    name = payload["name"]
    if name.endswith(".pt2"):
        scope.progress(None, f"opening {Path(name).name}")
        module, example = opened(Path(name))
    else:
        scope.progress(None, f"calling {name}")
        value = _called(name, resolve(name))
        if classic.is_estimator(value):
            if payload["weights"]:
                raise InvalidInput(f"{name} makes an estimator, which takes no --weights", "leave it out")
            samples = {"spec": payload["data"]} | payload["reading"]
            return classic.converted(value, file_name(name), Path(payload["into"]), samples, scope).to_json()
        module, example = made(name, value)
    if payload["weights"]:
        load_weights(module, Path(payload["weights"]))
    as_made = "" if name.endswith(".pt2") else weights_digest(module)
    scope.progress(None, "exporting the module")
    try:
        return exported(module, example, payload["data"], Path(payload["into"]), file_name(name)).to_json()
    except Untraceable as error:
        if name.endswith(".pt2"):
            raise
        scope.progress(None, f"the module is run as it is: {error.cause}")
        return as_it_is(module, example, payload, as_made, error.cause).to_json()


def as_it_is(module: Any, example: Any, payload: Mapping[str, Any], as_made: str, reason: str) -> Model:
    """A module that cannot be exported: a note of the function that makes it, which PyTorch's runtime calls again.

    `as_made` is the hash of its weights before it was run, as running it may change its buffers.
    """
    found = running(module, *looked_at(module, example, payload["data"]))
    named = Named(module, list(found[0]))
    with evaluating(module):
        _, outputs = run_probes(named, found)
    signature = described(found, outputs)
    note = {key: payload[key] for key in ("name", "weights")}
    note |= {"reason": reason, "folder": os.getcwd(), "writes": named.writes}
    digest = digest_of(as_made, note["name"], signature)
    size = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    into = Path(payload["into"])
    into.mkdir(parents=True, exist_ok=True)
    (into / digest).mkdir(exist_ok=True)
    path = into / digest / f"{file_name(note['name'])}.torch.json"
    path.write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")
    facts = Facts(sum(p.numel() for p in module.parameters()), size, None, "PyTorch", {})
    return Model(path, "torch", digest, signature, facts)


def file_name(source: str) -> str:
    """What a file made from `module:function`, or from a path, is called.

    >>> file_name("models:encoder"), file_name("/some/where/net.pt2")
    ('models.encoder', 'net')
    """
    return Path(source).stem if source.endswith(".pt2") else source.replace(":", ".")


def digest_of(weights: str, name: str, signature: Signature) -> str:
    """The hash of a module: of its weights' hash, of the function that makes it, and of what it takes and gives."""
    return hashlib.sha256(json.dumps([weights, name, asdict(signature)], sort_keys=True).encode()).hexdigest()


def weights_digest(module: Any) -> str:
    """The hash of a module's weights and buffers."""
    digest = hashlib.sha256()
    for key, tensor in sorted(module.state_dict().items()):
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(pt2.content(tensor))
    return digest.hexdigest()


def reason(model: Model) -> str:
    """Why the module of `as_it_is` could not be exported."""
    return str(_note(model)["reason"])


def _note(model: Model) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(model.path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Failed(f"the note of the module cannot be read: {error}", "run the command again") from None
    return found


def reopened(model: Model) -> Any:
    """The module of `as_it_is`, made again: it takes tensors in the signature's order and gives a dict of them."""
    note = _note(model)
    try:
        os.chdir(note["folder"])
    except OSError as error:
        raise Failed(f"the module cannot be made again: {error}") from None
    module, _ = made(note["name"], _called(note["name"], resolve(note["name"])))
    if note["weights"]:
        load_weights(module, Path(note["weights"]))
    if digest_of(weights_digest(module), note["name"], model.signature) != model.sha256:
        raise Failed(
            f"{note['name']} makes another model each time",
            "load its weights there, or begin with torch.manual_seed(0)",
        )
    return Named(module.eval(), [tensor.name for tensor in model.signature.inputs], note["writes"])


def made(name: str, value: Any) -> tuple[Any, Any]:
    """(module, example or None) from what a factory returned."""
    try:
        import torch
    except ImportError:
        raise InvalidInput("PyTorch models need torch", "install the extra", "pip install 'hasten[torch]'") from None
    module, example = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
    if not isinstance(module, torch.nn.Module):
        raise InvalidInput(
            f"{name} returned a {type(module).__name__}, not an nn.Module or a fitted estimator",
            "return the module, or (module, inputs)",
        )
    return module, example


def opened(path: Path) -> tuple[Any, Any]:
    """A stranger's exported program as a module that takes its inputs in order, with those it was exported with."""
    import torch

    program = pt2.open_program(path)
    inner = program.module(check_guards=False)
    args, kwargs = program.example_inputs or ((), {})
    keys = list(kwargs)

    class InOrder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *tensors: Any) -> Any:
            cut = len(tensors) - len(keys)
            return self.inner(*tensors[:cut], **dict(zip(keys, tensors[cut:], strict=True)))

    module = InOrder()
    module.training = False
    values = [*args, *kwargs.values()]
    names = [str(name) for name in program.graph_signature.user_inputs]
    return module, dict(zip(names, values, strict=True)) if values else None


def exported(module: Any, example: Any, data: Any, into: Path, name: str) -> Model:
    """Export with probes from the example, the samples, or both."""
    given, samples = looked_at(module, example, data)
    return export(module, running(module, given, samples), into, name)


def running(
    module: Any, example: Mapping[str, Any] | None, samples: Sequence[Mapping[str, np.ndarray]]
) -> list[dict[str, Any]]:
    """Probes that the module runs on: of several rows, else of one alone; with the samples' own first axis as rows,
    where it is 1 and nothing else runs."""
    first = probes(example, samples)
    choices = [first, first[:1]]
    if example is not None:
        choices.append([{name: tensor.detach().cpu().numpy() for name, tensor in example.items()}])
    elif samples and all(array.ndim and len(array) == 1 for sample in samples for array in sample.values()):
        choices.append(probes(None, [{name: array[0] for name, array in sample.items()} for sample in samples]))
    elif samples:
        choices.append([{name: array[:1] for name, array in first[0].items()}])
    refused: InvalidInput | None = None
    with evaluating(module):
        for choice in choices:
            try:
                run_probes(Named(module, list(choice[0])), choice)
                return choice
            except InvalidInput as error:
                refused = refused or error
    assert refused is not None
    raise refused


def looked_at(module: Any, example: Any, data: Any) -> tuple[dict[str, Any] | None, list[dict[str, np.ndarray]]]:
    """The example's tensors by name, and the first samples with the example's types."""
    given = None if example is None else from_example(module, example)
    samples = [] if data is None else _peek(data, list(given) if given else arguments(module))
    if data is not None and not samples and given is None:
        raise InvalidInput(
            "samples of this kind do not tell by themselves what the module takes",
            "return (module, example inputs) from the function; .npz, .npy, .jsonl and module:function do tell it",
        )
    return given, [_like(sample, given) for sample in samples] if given else samples


def _like(sample: Mapping[str, np.ndarray], example: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The sample with the example's types, and without a batch axis that it carries."""
    found = {}
    for name, tensor in example.items():
        if name not in sample:
            raise InvalidInput(f"the samples have no input {name!r}; the module takes {', '.join(example)}")
        array = sample[name].astype(str(tensor.dtype).removeprefix("torch."))
        found[name] = array[0] if array.ndim == tensor.ndim and array.ndim else array
    return found


def probes(example: Mapping[str, Any] | None, samples: Sequence[Mapping[str, np.ndarray]]) -> list[dict[str, Any]]:
    """Batches that differ in every axis that shall be dynamic: of 2 and of 3 rows, and as long as samples are.

    Without samples only the batch axis is taken to be dynamic, where the example's inputs share one.
    """
    import numpy as np

    if not samples:
        if example is None:
            raise InvalidInput(
                "nothing says what the module takes",
                "return (module, example inputs) from the function, or give --data",
            )
        batch = {name: tensor.detach().cpu().numpy() for name, tensor in example.items()}
        sizes = {array.shape[0] for array in batch.values() if array.ndim}
        if len(sizes) != 1 or any(not array.ndim for array in batch.values()):
            return [batch]
        (size,) = sizes
        wanted = ROWS if size in ROWS else (size, *ROWS)
        return [{name: np.resize(array, (rows, *array.shape[1:])) for name, array in batch.items()} for rows in wanted]
    shortest, longest = (
        choose(samples, key=lambda sample: sum(array.size for array in sample.values())) for choose in (min, max)
    )
    found = []
    for rows, sample in zip(ROWS, (shortest, longest), strict=True):
        found.append({name: np.stack([array] * rows) for name, array in sample.items()})
    return found


def load_weights(module: Any, path: Path) -> None:
    """Load a state dict without running any code that the file may hold."""
    import torch

    if not path.is_file():
        raise InvalidInput(f"there are no weights at {path}", "check the path")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except ImportError:
        raise InvalidInput("safetensors is not installed", "install it", "pip install safetensors") from None
    except Exception as error:
        raise InvalidInput(
            f"{path.name} cannot be read without running code: {first_line(error)}",
            "save the state dict alone: torch.save(module.state_dict(), path)",
        ) from None
    weights: Any = state.get("state_dict", state) if isinstance(state, Mapping) else state
    try:
        module.load_state_dict(weights)
    except Exception as error:
        raise InvalidInput(
            f"the weights in {path.name} do not fit the module: {first_line(error)}",
            "check that the function makes the module that the weights were saved from",
        ) from None


def _called(name: str, factory: Any) -> Any:
    try:
        return factory()
    except HastenError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"{name} raised {type(error).__name__}: {first_line(error)}", "repair the function that makes the module"
        ) from error


def _peek(data: Any, names: Sequence[str]) -> list[dict[str, np.ndarray]]:
    from hasten.data import peek

    return peek(data, names, LOOKED_AT)
