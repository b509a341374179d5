"""OpenVINO: compiles ONNX and OpenVINO models for Intel-style CPUs and runs batches through its request objects."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from importlib.metadata import PackageNotFoundError, version
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from hasten.errors import Failed, HastenError, InvalidInput
from hasten.model import Model
from hasten.runtimes.base import Availability, OperatorTime, Settings, check_settings
from hasten.runtimes.openvino_graph import OPTIONS, PRECISIONS, Graph, readable

if TYPE_CHECKING:
    import numpy as np

    from hasten.runtimes.base import Batch

HANDOVER_PAYS_MS = 1.0
"""Batches longer than this run on OpenVINO's own threads where there are several (see `OpenVinoSession.run`)."""

MOST_SHAPES = 4096
"""So many shapes are remembered as sound; others take OpenVINO's own threads each time."""

_Started = tuple[Callable[[], dict[str, Any]], "Future[dict[str, Any]]"]
"""What waits for a request under way, and the future that it answers."""


class OpenVino:
    """Loads ONNX files and OpenVINO .xml files."""

    name = "openvino"
    accepts = frozenset({"onnx", "openvino"})
    precisions = tuple(PRECISIONS)
    language = "hasten.runtimes.openvino_decoder:OpenVinoLanguage"
    speech = "hasten.runtimes.openvino_speech:OpenVinoSpeech"

    def availability(self) -> Availability:
        try:
            return Availability(True, version=version("openvino"))
        except PackageNotFoundError:
            return Availability(False, "the package openvino is not installed", "pip install openvino")

    def __init__(self) -> None:
        self._read: WeakValueDictionary[tuple[Any, ...], Graph] = WeakValueDictionary()
        self._lock = threading.Lock()

    def load(self, model: Model, settings: Settings) -> OpenVinoSession:
        check_settings(self.name, settings, self.precisions, OPTIONS)
        return OpenVinoSession(model, settings, self._graph(model, bool(settings.options.get("mmap", True))))

    def _graph(self, model: Model, mmap: bool) -> Graph:
        """The file as read. Sessions of one model, such as one for each fixed shape, share it and so its weights.

        Measured on a 90 MB model: each further session then takes 70 MB instead of 160, and loads 0.3 s sooner.
        """
        try:
            stat = model.path.stat()
        except OSError as error:
            raise Failed(f"cannot read {model.path}: {error.strerror}") from None
        key = (model.path, model.sha256, stat.st_mtime_ns, stat.st_size, mmap)
        with self._lock:
            graph = self._read.get(key)
            if graph is None:
                graph = self._read[key] = Graph(model, mmap)
            return graph


class OpenVinoSession:
    """A compiled model with its pool of infer requests; safe to call from several threads.

    Inputs are shared with the runtime, not copied, until the batch is done; outputs are copied once.
    """

    def __init__(self, model: Model, settings: Settings, graph: Graph) -> None:
        self._settings, self._graph = settings, graph
        compiled = graph.compile(settings, {})
        self._requests = _Requests(compiled)
        self._inputs = _inputs(compiled)
        self._absent = frozenset(tensor.name for tensor in model.signature.inputs) - set(self._inputs)
        self._names = _output_names(compiled, model)
        self._crowded, self._last_ms = settings.threads != 1, 0.0
        self._seen: set[tuple[tuple[int, ...], ...]] | None = set() if _unchecked(compiled) else None
        self._queue: SimpleQueue[_Started | None] = SimpleQueue()
        self._waiters: list[threading.Thread] = []
        self._lock = threading.Lock()

    def run(self, batch: Batch) -> dict[str, Any]:
        """Run on the caller's thread, or, where several threads share long batches, on OpenVINO's own.

        The caller's thread saves a hand-over of about 20 us. But it is not pinned as the others are: on a busy machine
        the scheduler keeps it on the core of one of them, and a batch takes up to four times as long.
        Shapes that are new to a session of one thread go to OpenVINO's own as well: see `_unchecked`.
        """
        if self._crowded and self._last_ms > HANDOVER_PAYS_MS:
            return self.begin(batch)()
        if self._seen is not None and (shapes := tuple(array.shape for array in batch.values())) not in self._seen:
            outputs = self.begin(batch)()
            if len(self._seen) < MOST_SHAPES:
                self._seen.add(shapes)
            return outputs
        held = self._tensors(batch)
        requests = self._requests
        request = requests.take()
        try:
            # Not sharing outputs, the binding copies them itself, which is quicker than a copy of each view.
            found = request.infer(held, False, True)
            self._last_ms = request.latency
        except Exception as error:
            raise self._failed(error, requests, held) from None
        requests.idle.append(request)
        return dict(zip(self._names, found.values(), strict=True))

    def begin(self, batch: Batch) -> Callable[[], dict[str, Any]]:
        """Start at once; the answer waits on the caller's own thread: no other thread wakes up for it."""
        held = self._tensors(batch)
        requests = self._requests
        request = requests.take()
        try:
            request.start_async(held, None)
        except Exception as error:
            raise self._failed(error, requests, held) from None
        return lambda: self._end(requests, request, held)

    def submit(self, batch: Batch) -> Future[dict[str, Any]]:
        """Start at once: what exceeds the streams queues inside OpenVINO, so that a stream never waits for Python."""
        future: Future[dict[str, Any]] = Future()
        try:
            self._await((self.begin(batch), future))
        except HastenError as error:
            future.set_exception(error)
        return future

    def operators(self, batch: Batch, repeats: int = 10) -> list[OperatorTime]:
        """Median times. Compiles a second time, with counters on and one stream; kernels and fusions are the same."""
        from hasten.runtimes.openvino_profile import profile

        single = Settings(
            self._settings.precision, self._settings.threads, 1, self._settings.shapes, self._settings.options
        )
        compiled = self._graph.compile(single, {"PERF_COUNT": True})
        try:
            return profile(compiled, self._tensors(batch), repeats)
        except Exception as error:
            raise _run_error(error) from None

    def close(self) -> None:
        for _ in self._waiters:
            self._queue.put(None)
        for waiter in self._waiters:
            waiter.join()
        self._waiters.clear()
        self._requests = _Requests(None)

    def _tensors(self, batch: Batch) -> dict[int, Any]:
        tensors = {}
        for name, array in batch.items():
            if name in self._inputs:
                index, dtype, kind = self._inputs[name]
                tensors[index] = _tensor(name, array, dtype, kind)
            elif name not in self._absent:
                raise InvalidInput(f"the model has no input {name}", f"the inputs are: {', '.join(self._inputs)}")
        if len(tensors) < len(self._inputs):
            missing = [name for name in self._inputs if name not in batch]
            raise InvalidInput(f"the model's batch misses {', '.join(missing)}")
        return tensors

    def _end(self, requests: _Requests, request: Any, held: dict[int, Any]) -> dict[str, Any]:
        try:
            request.wait()
            self._last_ms = request.latency
            # `.data` is a view of the request's own memory, which the next batch overwrites.
            outputs = {
                name: array.copy() if (array := request.get_output_tensor(index).data).dtype.kind != "S" else array
                for index, name in enumerate(self._names)
            }
        except Exception as error:
            raise self._failed(error, requests, held) from None
        finally:
            held.clear()
        requests.idle.append(request)
        return outputs

    def _failed(self, error: Exception, requests: _Requests, held: Mapping[int, Any]) -> HastenError:
        """What to raise for a batch that OpenVINO did not run, once the session is fit for others again.

        After a failure inside the graph, good batches fail too, with the error of the bad one (measured with OpenVINO
        2026.4.1: 299 of 299, on one stream), so the model is compiled anew. Not for shapes that are refused outright.
        """
        inputs = requests.compiled.inputs
        if all(inputs[index].get_partial_shape().compatible(_shape(tensor)) for index, tensor in held.items()):
            with self._lock:
                if self._requests is requests:
                    self._requests = _Requests(self._graph.compile(self._settings, {}))
        return _run_error(error)

    def _await(self, item: _Started) -> None:
        self._queue.put(item)
        if len(self._waiters) < 2 * (self._settings.streams or 1):
            with self._lock:
                waiter = threading.Thread(target=self._wait, name="openvino-waiter", daemon=True)
                self._waiters.append(waiter)
                waiter.start()

    def _wait(self) -> None:
        """Finish requests. Not by callbacks: OpenVINO calls those on success only, and a failure would be lost."""
        while (item := self._queue.get()) is not None:
            end, future = item
            try:
                outputs = end()
            except HastenError as error:
                future.set_exception(error)
            else:
                future.set_result(outputs)
            del item, end, future


class _Requests:
    """The infer requests of one compiled model."""

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled
        self.idle: deque[Any] = deque()

    def take(self) -> Any:
        try:
            return self.idle.pop()
        except IndexError:
            from openvino._pyopenvino import CompiledModel

            # The binding's own class: the wrapper's checks on every call cost more than a small model's arithmetic.
            return CompiledModel.create_infer_request(self.compiled)


def _unchecked(compiled: Any) -> bool:
    """Whether OpenVINO runs shapes that cannot be, such as a product of 1x4 by 3x2, on the caller's thread.

    Measured with 2026.4.1: where it has one thread in all, `infer` loses the error, and answers from memory that is
    not the batch's. Started asynchronously, the same batch is refused.
    """
    one = all(compiled.get_property(key) == 1 for key in ("NUM_STREAMS", "INFERENCE_NUM_THREADS"))
    return one and any(port.get_partial_shape().is_dynamic for port in compiled.inputs)


def _shape(tensor: Any) -> Any:
    import openvino as ov

    return ov.PartialShape(list(tensor.shape))


def _inputs(compiled: Any) -> dict[str, tuple[int, Any, str]]:
    """Index, NumPy dtype and OpenVINO type name of each input, by each of its names."""
    found = {}
    for index, port in enumerate(compiled.inputs):
        element = port.get_element_type()
        kind = element.get_type_name()
        dtype = None if kind in ("string", "bf16") else element.to_dtype()
        found[_name(port, index, "input")] = (index, dtype, kind)
    return found


def _output_names(compiled: Any, model: Model) -> list[str]:
    """The signature's names, which stand in the same order; two of them may share one port."""
    ports = compiled.outputs
    if len(ports) == len(model.signature.outputs):
        return [tensor.name for tensor in model.signature.outputs]
    return [_name(port, index, "output") for index, port in enumerate(ports)]


def _name(port: Any, index: int, what: str) -> str:
    names = sorted(port.get_names())
    return names[0] if names else f"{what}_{index}"


def _tensor(name: str, array: np.ndarray, dtype: Any, kind: str) -> Any:
    """A tensor over the array's own memory; only text, read-only and scattered arrays are copied."""
    import numpy as np
    import openvino as ov

    if dtype is None:
        if kind == "string":
            return ov.Tensor(np.asarray(array, dtype=np.str_), shared_memory=False)
        if array.dtype.itemsize != 2:
            raise InvalidInput(f"input {name} is {array.dtype}, and the model expects bfloat16")
        return ov.Tensor(np.ascontiguousarray(array), array.shape, ov.Type.bf16)
    if array.dtype != dtype:
        raise InvalidInput(f"input {name} is {array.dtype}, and the model expects {np.dtype(dtype)}")
    flags = array.flags
    if not (flags.c_contiguous and flags.writeable):
        array = np.array(array, order="C")
    return ov.Tensor(array, shared_memory=True)


def _run_error(error: Exception) -> HastenError:
    return error if isinstance(error, HastenError) else Failed(f"openvino: {readable(error)}")
