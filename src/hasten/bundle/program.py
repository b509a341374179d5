"""A bundle in use: its model loaded under its recipe.

This part, and all that it stands on, also ships in `run.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.bundle.manifest import check_files, inside, pins, read_manifest
from hasten.errors import Failed, InvalidInput
from hasten.model import Facts, Model, Signature, Tensor
from hasten.runner.cache import from_recipe
from hasten.runner.plan import RunnerSettings
from hasten.runner.runner import Runner
from hasten.runner.tokenise import Tokeniser
from hasten.runtimes.base import Settings
from hasten.workload import Padding

if TYPE_CHECKING:
    import numpy as np

    Sample = Mapping[str, np.ndarray]


class BundledModel:
    """The model of the bundle in `folder`. Calling it takes and gives what the original model did.

    `inputs` is a dict of arrays with the batch axis first, or a list of samples (dicts of arrays without batch axis),
    whose sizes may differ. The answer is a dict of arrays with the batch axis first; outputs whose sizes differ between
    samples come as an object array of arrays. A dict without batch axis is one sample, and so is its answer.
    """

    def __init__(self, folder: str | Path, runtime: Any, *, verify: bool = True) -> None:
        self.folder = Path(folder)
        self.manifest = manifest = read_manifest(self.folder)
        if verify:
            check_files(self.folder, manifest)
        available = runtime.availability()
        if not available.usable:
            needed = pins(manifest["runtime"])
            raise InvalidInput(f"this bundle needs {needed}: {available.reason}", "install it", f"pip install {needed}")
        try:
            self.signature = Signature.from_json(manifest["signature"])
            self._samples = {tensor["name"]: Tensor.from_json(tensor) for tensor in manifest["samples"]}
            recipe, part = manifest["recipe"], manifest["parts"]["main"]
            model = Model(
                inside(self.folder, part["path"]).absolute(),
                part["format"],
                part["sha256"],
                Signature.from_json(part["signature"]),
                Facts.from_json(part["facts"]),
            )
            padding = Padding.from_json(manifest["padding"])
            words = manifest["parts"].get("tokenizer")
            tokenizer = None if words is None else inside(self.folder, words["path"]).absolute()
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"{self.folder.name}: bundle.json is incomplete: {error}") from None
        self._runner = self._open(runtime, model, recipe, padding, tokenizer)

    def _open(
        self, runtime: Any, model: Model, recipe: Mapping[str, Any], padding: Padding | None, tokenizer: Path | None
    ) -> Any:
        if self.manifest["program"] != "single":
            raise InvalidInput(f"this version does not run the program {self.manifest['program']!r}")
        return Runner(
            lambda settings: runtime.load(model, settings),
            Settings.from_recipe(recipe.get("runtime", {})),
            RunnerSettings.from_recipe(recipe.get("runner", {})),
            self.signature,
            model.signature,
            padding,
            from_recipe(recipe.get("cache", {}), self.signature),
            None if tokenizer is None else Tokeniser(tokenizer, [tensor.name for tensor in self.signature.inputs]),
        )

    def __call__(self, inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        if isinstance(inputs, Mapping):
            samples, single = self._unstack(inputs)
        else:
            samples, single = [self._sample(sample) for sample in inputs], False
        if not samples:
            raise InvalidInput("there are no samples to run", "give at least one")
        outputs = self._runner.run(samples)
        return outputs[0] if single else {name: stacked([out[name] for out in outputs]) for name in outputs[0]}

    def run(self, samples: Sequence[Mapping[str, Any]]) -> list[dict[str, np.ndarray]]:
        """The outputs of each sample, in order, without batch axis."""
        return self._runner.run([self._sample(sample) for sample in samples])

    def without_extra(self, inputs: Any) -> tuple[Any, tuple[str, ...]]:
        """`inputs` without the arrays that the model does not take, such as labels, and what those are called.

        Where an input is missing nothing is left out, so that the error can name all that is there.
        """
        samples = [inputs] if isinstance(inputs, Mapping) else inputs
        wanted = set(self._samples)
        extra = tuple(sorted({str(name) for sample in samples for name in sample} - wanted))
        if not extra or any(wanted - set(sample) for sample in samples):
            return inputs, ()
        kept = [{name: sample[name] for name in self._samples} for sample in samples]
        return kept[0] if isinstance(inputs, Mapping) else kept, extra

    def close(self) -> None:
        self._runner.close()

    def __enter__(self) -> BundledModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _unstack(self, inputs: Mapping[str, Any]) -> tuple[list[dict[str, np.ndarray]], bool]:
        """Samples from a dict of arrays, and whether it was a single sample without batch axis."""
        import numpy as np

        self._check_names(inputs)
        arrays = {name: np.asarray(value) for name, value in inputs.items()}
        batched = {name for name, array in arrays.items() if array.ndim == self._rank(name) + 1}
        sizes = {len(arrays[name]) for name in batched}
        if len(sizes) > 1:
            raise InvalidInput(f"the batch axes of the inputs differ: {', '.join(map(str, sorted(sizes)))}")
        if not batched:
            return [self._sample(arrays)], True
        rows = range(sizes.pop())
        whole = self._sample(arrays, batched)
        return [{name: array[i] if name in batched else array for name, array in whole.items()} for i in rows], False

    def _sample(self, sample: Mapping[str, Any], batched: set[str] | frozenset[str] = frozenset()) -> dict[str, Any]:
        """The arrays of `sample` in the types that the model takes; those in `batched` have one axis more."""
        import numpy as np

        self._check_names(sample)
        found = {}
        for name, expected in self._samples.items():
            array = np.asarray(sample[name])
            rank = self._rank(name) + (name in batched)
            if array.ndim != rank:
                raise InvalidInput(f"input {name} has {array.ndim} axes, and {rank} are expected")
            found[name] = cast(name, array, expected.dtype)
        return found

    def _rank(self, name: str) -> int:
        shape = self._samples[name].shape
        return 0 if shape is None else len(shape)

    def _check_names(self, inputs: Mapping[str, Any]) -> None:
        if set(inputs) != set(self._samples):
            raise InvalidInput(
                f"the inputs are called {', '.join(sorted(map(str, inputs))) or 'nothing'}",
                f"give {', '.join(self._samples)}",
            )


def module_at(path: Path) -> Any:
    """The Python file at `path`, imported by a name of its own, with nothing written beside it."""
    import importlib.util
    import sys

    sys.dont_write_bytecode = True
    name = f"hasten_bundle_{path.parent.name}_{path.stem}".replace(".", "_").replace("-", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Failed(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def cast(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    """`array` in `dtype`, where no kind of number is lost: float64 becomes float32, a float never an integer."""
    import numpy as np

    if dtype in ("string", "bfloat16"):
        return array
    wanted = np.dtype(dtype)
    if array.dtype == wanted:
        return array
    if array.dtype.kind in "iu" and wanted.kind in "iu" and array.size:
        bounds = np.iinfo(wanted)
        if bounds.min <= array.min() and array.max() <= bounds.max:
            return array.astype(wanted)
    elif np.can_cast(array.dtype, wanted, "same_kind"):
        return array.astype(wanted)
    raise InvalidInput(f"input {name} is {array.dtype}, and {dtype} is expected", f"convert it to {dtype}")


def stacked(values: Sequence[np.ndarray]) -> np.ndarray:
    """One array with samples first; an object array of arrays where their shapes differ."""
    import numpy as np

    arrays = [np.asarray(value) for value in values]
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    found = np.empty(len(arrays), object)
    found[:] = arrays
    return found


def read_npz(path: str | Path) -> dict[str, np.ndarray] | list[dict[str, np.ndarray]]:
    """Inputs from a .npz file: a dict of arrays, or samples of different sizes where keys are NAME[0], NAME[1], ..."""
    import zipfile

    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except OSError as error:
        raise Failed(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, AttributeError, EOFError, zipfile.BadZipFile):
        raise InvalidInput(f"{path} is not a .npz file of plain arrays", "write it with numpy.savez") from None
    samples: dict[int, dict[str, np.ndarray]] = {}
    for key, array in arrays.items():
        name, _, index = key.partition("[")
        if not index.endswith("]") or not index[:-1].isdecimal():
            return arrays
        samples.setdefault(int(index[:-1]), {})[name] = array
    return [samples[index] for index in sorted(samples)]


def write_npz(path: str | Path, outputs: Mapping[str, np.ndarray]) -> None:
    """Outputs to a .npz file; those of different sizes become NAME[0], NAME[1], ..."""
    import numpy as np

    arrays = {}
    for name, array in outputs.items():
        if array.dtype == object and array.size and isinstance(array.flat[0], np.ndarray):
            arrays.update({f"{name}[{i}]": row for i, row in enumerate(array)})
        else:
            arrays[name] = array.astype(np.str_) if array.dtype == object else array
    try:
        with open(path, "wb") as file:
            np.savez(file, **arrays)
    except OSError as error:
        raise Failed(f"cannot write {path}: {error.strerror or error}") from None
