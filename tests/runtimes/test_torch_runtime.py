"""PyTorch as a runtime: eager and compiled programs, threads, streams and precisions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hasten.errors import Failed, InvalidInput  # noqa: E402
from hasten.intake.module import export  # noqa: E402
from hasten.runtimes import Settings, runtime  # noqa: E402
from hasten.runtimes.torch import compiles  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    probes = [{"input": np.ones((rows, 8), np.float32)} for rows in (2, 3)]
    return export(module, probes, tmp_path_factory.mktemp("models"), "small")


def batch(rows: int = 5) -> dict[str, np.ndarray]:
    return {"input": np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)}


def outputs(model, settings: Settings, rows: int = 5) -> np.ndarray:
    session = runtime("torch").load(model, settings)
    try:
        return session.run(batch(rows))["output"]
    finally:
        session.close()


def test_streams_answer_what_a_single_run_does(model):
    wanted = outputs(model, Settings())
    session = runtime("torch").load(model, Settings(streams=2, threads=1))
    futures = [session.submit(batch()) for _ in range(6)]
    for future in futures:
        np.testing.assert_allclose(future.result()["output"], wanted, atol=1e-6)
    session.close()


def test_bf16_is_close_and_comes_back_as_float32(model):
    wanted, found = outputs(model, Settings()), outputs(model, Settings(precision="bf16"))
    assert found.dtype == np.float32
    assert not np.array_equal(found, wanted)
    np.testing.assert_allclose(found, wanted, atol=0.05)


@pytest.mark.slow
@pytest.mark.skipif(not compiles(), reason="no C++ compiler is installed")
def test_a_compiled_program_gives_the_same_outputs(model, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    wanted = outputs(model, Settings())
    np.testing.assert_allclose(outputs(model, Settings(options={"compile": True})), wanted, atol=1e-5)


def test_operators_are_timed_by_the_names_of_the_program(model):
    session = runtime("torch").load(model, Settings())
    found = session.operators(batch(), repeats=2)
    assert sorted(time.kind for time in found) == ["Gelu", "MatMul", "MatMul"]
    assert all(time.microseconds > 0 and time.sources for time in found)
    session.close()


def test_a_batch_without_an_input_is_refused(model):
    session = runtime("torch").load(model, Settings())
    with pytest.raises(InvalidInput, match="misses input"):
        session.run({"other": np.ones((2, 8), np.float32)})
    with pytest.raises(Failed, match="torch:"):
        session.run({"input": np.ones((2, 7), np.float32)})
    session.close()


@pytest.mark.parametrize(
    "settings",
    [
        Settings(precision="int4"),
        Settings(threads=0),
        Settings(options={"kompile": True}),
        Settings(options={"device": "cuda"}),
    ],
)
def test_settings_that_make_no_sense_here_are_refused(model, settings):
    if settings.options.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(InvalidInput):
        runtime("torch").load(model, settings)


@pytest.mark.gpu
def test_it_runs_on_cuda(model):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device is here")
    np.testing.assert_allclose(
        outputs(model, Settings(options={"device": "cuda"})), outputs(model, Settings()), atol=1e-3
    )


def test_a_damaged_program_is_told_of(model, tmp_path):
    from dataclasses import replace

    broken = tmp_path / "broken.pt2"
    broken.write_bytes(Path(model.path).read_bytes()[:500])
    with pytest.raises(Failed, match="cannot load"):
        runtime("torch").load(replace(model, path=broken), Settings())


def test_what_a_program_makes_itself_moves_with_it(tmp_path):
    from hasten.formats.pt2 import open_program

    class Places(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.arange(x.shape[1], device=x.device)

    probes = [{"x": np.zeros((2, length), np.float32)} for length in (3, 5)]
    program = open_program(export(Places(), probes, tmp_path, "places").path, "meta")
    assert program.module(check_guards=False)(torch.zeros(2, 4, device="meta"))["output"].device.type == "meta"
