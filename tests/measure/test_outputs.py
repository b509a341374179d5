from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hasten.errors import Failed
from hasten.measure.outputs import load, save, stacked

arrays = hnp.arrays(
    dtype=st.sampled_from([np.float32, np.float64, np.int64, np.bool_, np.float16]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(arrays, min_size=1, max_size=5), st.sampled_from(["y", "a/b:0", "ünï", "0.data", "header"]))
def test_ragged_outputs_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, values, name: str) -> None:
    kind = values[0].dtype
    with np.errstate(all="ignore"):
        values = [value.astype(kind) for value in values]
    outputs = [{name: value, "other": np.float32(i)} for i, value in enumerate(values)]
    path = tmp_path_factory.mktemp("outputs") / "o.npz"
    save(path, outputs)
    found = load(path)
    assert len(found) == len(outputs)
    for before, after in zip(outputs, found, strict=True):
        assert list(before) == list(after)
        assert after[name].dtype == kind
        np.testing.assert_array_equal(after[name], before[name])
        assert after[name].shape == before[name].shape


def test_text_and_small_floats_need_no_pickle(tmp_path: Path) -> None:
    path = tmp_path / "o.npz"
    save(path, [{"t": np.array(["no", "maybe"], object), "b": np.ones(2, ml_dtypes.bfloat16)}])
    (found,) = load(path)
    assert found["t"].tolist() == ["no", "maybe"]
    assert found["b"].dtype == np.float32
    np.load(path, allow_pickle=False).close()


def test_no_outputs_are_no_outputs(tmp_path: Path) -> None:
    save(tmp_path / "o.npz", [])
    assert load(tmp_path / "o.npz") == []


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="cannot write outputs"):
        save(tmp_path / "missing" / "o.npz", [{"y": np.ones(2)}])
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_some_samples_lack_is_named(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="'y' is missing"):
        save(tmp_path / "o.npz", [{"y": np.ones(2)}, {"z": np.ones(2)}])


def test_a_file_cut_short_is_told(tmp_path: Path) -> None:
    path = tmp_path / "o.npz"
    save(path, [{"y": np.ones(100)}])
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(Failed, match="cut short"):
        load(path)
    with pytest.raises(Failed, match="cannot read"):
        load(tmp_path / "absent.npz")


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "o.npz"
    np.savez(path, header=np.array([{"a": 1}], object))
    with pytest.raises(Failed, match="does not hold saved outputs"):
        load(path)


def test_equal_shapes_are_stacked_and_ragged_ones_listed() -> None:
    assert stacked([{"y": np.ones(2)}, {"y": np.zeros(2)}], "y").shape == (2, 2)
    assert isinstance(stacked([{"y": np.ones(2)}, {"y": np.zeros(3)}], "y"), list)
