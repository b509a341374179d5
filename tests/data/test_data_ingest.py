"""What `data` reads, what it refuses, and what it says then."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hasten import data
from hasten.data import SampleSet
from hasten.errors import Failed, InvalidInput
from hasten.model import Dim, Facts, Model, Signature, Tensor
from hasten.workload import Samples


def model(**inputs: tuple[str, Sequence[Dim] | None]) -> Model:
    tensors = tuple(Tensor(n, dtype, None if shape is None else tuple(shape)) for n, (dtype, shape) in inputs.items())
    outputs = (Tensor("y", "float32", ("n", 10)),)
    return Model(Path("m.onnx"), "onnx", "0" * 64, Signature(tensors, outputs), Facts(0, 0))


TABLE = model(x=("float32", ["n", 4]))
TEXT = model(ids=("int64", ["batch", "tokens"]), mask=("int64", ["batch", "tokens"]))
IMAGE = model(image=("float32", ["n", 3, 4, 5]))


def read(spec: Any, of: Model, folder: Path, **options: Any) -> SampleSet:
    samples = data.ingest_here(spec, of, folder / "store", **options)
    opened = SampleSet.open(samples.path)
    assert opened.handle == samples
    return opened


def refused(spec: Any, of: Model, folder: Path, **options: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        data.ingest_here(spec, of, folder / "store", **options)
    assert caught.value.fix
    assert not list((folder / "store").glob("*")), "nothing is left behind"
    return caught.value.cause


def npz(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "d.npz", **arrays)
    return folder / "d.npz"


def lines(folder: Path, *records: Any) -> Path:
    path = folder / "d.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records))
    return path


# what is read


def test_arrays_stacked_along_a_first_axis_are_samples_with_labels(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((6, 4), np.float32)
    found = read(npz(tmp_path, x=x, labels=np.arange(6)), TABLE, tmp_path)
    assert len(found) == 6
    assert np.array_equal(np.stack([sample["x"] for sample in found]), x)
    assert found[0]["x"].dtype == np.float32
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert found.handle.inputs == (Tensor("x", "float32", (4,)),)
    assert (found.handle.kind, found.handle.labels) == ("data", True)
    assert "first axis" in found.handle.origin


def test_the_worker_gives_what_this_process_gives(tmp_path: Path) -> None:
    path = npz(tmp_path, x=np.ones((3, 4)))
    here = data.ingest_here(path, TABLE, tmp_path / "a")
    there = data.ingest(path, TABLE, tmp_path / "b")
    assert (there.sha256, there.origin, there.count) == (here.sha256, here.origin, 3)
    assert there.path == tmp_path / "b" / there.sha256
    assert Samples.from_json(there.to_json()) == there


def test_the_hash_is_of_the_content_and_the_same_data_is_kept_once(tmp_path: Path) -> None:
    first = data.ingest_here(npz(tmp_path, x=np.ones((3, 4), np.float64)), TABLE, tmp_path / "s")
    again = data.ingest_here(lines(tmp_path, *[{"x": [1, 1, 1, 1]}] * 3), TABLE, tmp_path / "s")
    other = data.ingest_here(npz(tmp_path, x=np.zeros((3, 4))), TABLE, tmp_path / "s")
    assert first.sha256 == again.sha256 != other.sha256
    assert len(list((tmp_path / "s").iterdir())) == 2


def test_a_batch_axis_of_one_in_each_sample_is_taken_off(tmp_path: Path) -> None:
    found = read(npz(tmp_path, image=np.zeros((7, 1, 3, 4, 5))), IMAGE, tmp_path)
    assert (len(found), found[0]["image"].shape) == (7, (3, 4, 5))
    assert "batch axis" in found.handle.origin


def test_batches_are_split_into_samples_with_their_labels(tmp_path: Path) -> None:
    found = read(npz(tmp_path, x=np.arange(24).reshape(2, 3, 4), label=np.arange(6).reshape(2, 3)), TABLE, tmp_path)
    assert [int(sample["x"][0]) for sample in found] == [0, 4, 8, 12, 16, 20]
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1, 2, 3, 4, 5]


def test_one_sample_may_come_alone(tmp_path: Path) -> None:
    assert len(read(npz(tmp_path, image=np.zeros((3, 4, 5)), label=4), IMAGE, tmp_path)) == 1
    assert len(read(npz(tmp_path, image=np.zeros((1, 3, 4, 5)), label=[4]), IMAGE, tmp_path)) == 1


def test_a_model_without_batch_axis_takes_whole_samples(tmp_path: Path) -> None:
    of = model(wave=("float32", [512]), state=("float32", [2, 1, 8]), rate=("int64", []))
    path = npz(tmp_path, wave=np.zeros((5, 512)), state=np.zeros((2, 1, 8)), rate=16000)
    found = read(path, of, tmp_path)
    assert len(found) == 5
    assert {name: array.shape for name, array in found[4].items()} == {"wave": (512,), "state": (2, 1, 8), "rate": ()}
    assert "state, rate: the same value for every sample" in found.handle.origin


def test_the_user_can_overrule_the_detection(tmp_path: Path) -> None:
    fixed = model(x=("float32", [2, 4]))
    whole = read(lines(tmp_path, {"x": np.ones((2, 4)).tolist()}), fixed, tmp_path)
    assert (len(whole), whole[0]["x"].shape) == (1, (2, 4))
    split = read(lines(tmp_path, {"x": np.ones((2, 4)).tolist()}), fixed, tmp_path, batch_axis="yes")
    assert (len(split), split[0]["x"].shape) == (2, (4,))
    kept = read(lines(tmp_path, {"x": np.ones((2, 4)).tolist()}), TABLE, tmp_path, batch_axis="no")
    assert (len(kept), kept[0]["x"].shape) == (1, (2, 4))


def test_a_fixed_first_axis_beside_a_free_one_is_no_batch_axis(tmp_path: Path) -> None:
    recurrent = model(x=("float32", ["batch", 4]), state=("float32", [2, None, 3]))
    x = np.zeros((5, 4), np.float32)
    told = refused([{"x": row, "state": np.zeros((2, 3), np.float32)} for row in x], recurrent, tmp_path)
    assert "the model expects state float32[2, ?, 3], so a sample has 3 axes" in told
    samples = read([{"x": row, "state": np.zeros((2, 1, 3), np.float32)} for row in x], recurrent, tmp_path)
    assert samples[0]["state"].shape == (2, 1, 3)


def test_samples_of_different_lengths_keep_them(tmp_path: Path) -> None:
    records = [{"ids": list(range(n)), "mask": [1] * n, "label": n / 2} for n in (3, 5, 0, 5)]
    found = read(lines(tmp_path, *records), TEXT, tmp_path)
    assert [sample["ids"].tolist() for sample in found] == [[0, 1, 2], [0, 1, 2, 3, 4], [], [0, 1, 2, 3, 4]]
    assert found.lengths(0) == [3, 5, 0, 5]
    assert found.lengths(1) is None
    assert found.duplicates() == 0.25
    assert found.handle.inputs == (Tensor("ids", "int64", (None,)), Tensor("mask", "int64", (None,)))
    assert found.labels is not None
    assert found.labels.tolist() == [1.5, 2.5, 0.0, 2.5]


def test_samples_of_one_length_have_no_lengths(tmp_path: Path) -> None:
    assert read(npz(tmp_path, x=np.ones((3, 4))), TABLE, tmp_path).lengths(0) is None


def test_npy_goes_to_the_only_input(tmp_path: Path) -> None:
    for order in "CF":
        np.save(tmp_path / "d.npy", np.asarray(np.arange(12).reshape(3, 4), order=order))  # type: ignore[call-overload]
        assert read(tmp_path / "d.npy", TABLE, tmp_path)[2]["x"].tolist() == [8, 9, 10, 11]


def test_positional_arrays_follow_the_order_of_the_inputs(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "d.npz", np.ones((2, 5), int), np.zeros((2, 5), int))
    assert read(tmp_path / "d.npz", TEXT, tmp_path)[1]["mask"].tolist() == [0] * 5


def test_text_and_bfloat16_are_kept(tmp_path: Path) -> None:
    import ml_dtypes

    of = model(text=("string", ["n"]), half=("bfloat16", ["n", 2]))
    found = read(lines(tmp_path, {"text": "héllo", "half": [1, 0.5]}, {"text": "", "half": [2, 3]}), of, tmp_path)
    assert found[0]["text"].item() == "héllo"
    assert found[1]["text"].item() == ""
    assert found[0]["half"].dtype == ml_dtypes.bfloat16
    assert found[1]["half"].astype(float).tolist() == [2, 3]
    assert found.duplicates() == 0


def test_keys_that_the_model_does_not_take_are_named_in_the_origin(tmp_path: Path) -> None:
    found = read(lines(tmp_path, {"ids": [1], "mask": [1], "type_ids": [0]}), TEXT, tmp_path)
    assert list(found[0]) == ["ids", "mask"]
    assert "'type_ids'" in found.handle.origin


def test_values_are_cast_only_where_nothing_is_lost(tmp_path: Path) -> None:
    pixels = read(npz(tmp_path, image=np.full((1, 3, 4, 5), 255, np.uint8)), IMAGE, tmp_path)
    assert pixels[0]["image"].max() == 255
    assert "not scaled" in pixels.handle.origin
    small = model(x=("int32", ["n", 1]))
    assert read(npz(tmp_path, x=np.array([[1 << 30]])), small, tmp_path)[0]["x"].dtype == np.int32
    assert read(npz(tmp_path, x=np.array([[True]])), small, tmp_path)[0]["x"].tolist() == [1]
    assert read(npz(tmp_path, x=np.array([[0.1]])), model(x=("float32", ["n", 1])), tmp_path)[0]["x"][0] == np.float32(
        0.1
    )


@pytest.mark.parametrize(
    ("dtype", "value", "says"),
    [
        ("int32", np.array([[1 << 40]]), "int32"),
        ("int64", np.array([[0.5]]), "float64"),
        ("float32", np.array([[1e300]]), "too large"),
        ("float32", np.array([[(1 << 24) + 1]]), "exactly"),
        ("float16", np.array([[2049]]), "exactly"),
        ("bool", np.array([[2]]), "0 and 1"),
        ("float32", np.array([["a"]]), "text"),
        ("string", np.array([[1.0]]), "string"),
        ("float32", np.array([[np.nan]]), "NaN"),
        ("float32", np.array([[np.inf]]), "infinite"),
        ("uint8", np.array([[-1]]), "uint8"),
        ("float32", np.array([[1j]]), "complex"),
    ],
)
def test_a_wrong_type_or_value_is_refused(tmp_path: Path, dtype: str, value: np.ndarray, says: str) -> None:
    cause = refused(npz(tmp_path, x=value), model(x=(dtype, ["n", 1])), tmp_path)
    assert says in cause
    assert "sample 0: input 'x'" in cause


def test_csv_columns_are_inputs_by_name(tmp_path: Path) -> None:
    of = model(age=("int64", ["n"]), income=("float32", ["n", 1]), city=("string", ["n"]))
    (tmp_path / "d.csv").write_text('city,age,income,label\n"Bern, CH",30,1.5,yes\nUlm,40,2,no\n')
    found = read(tmp_path / "d.csv", of, tmp_path)
    assert {name: array.tolist() for name, array in found[0].items()} == {
        "age": 30,
        "income": [1.5],
        "city": "Bern, CH",
    }
    assert found.labels is not None
    assert found.labels.tolist() == ["yes", "no"]


def test_csv_columns_fill_an_only_input_in_order(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("a;b;c;d;kind\n1;2;3;4;0\n5;6;7;8;1\n")
    found = read(tmp_path / "d.csv", TABLE, tmp_path, label="kind")
    assert (found[1]["x"].tolist(), found.labels.tolist() if found.labels is not None else None) == (
        [5, 6, 7, 8],
        [0, 1],
    )
    (tmp_path / "d.csv").write_text("1,2,3,4,9\n5,6,7,8,9\n")
    assert len(read(tmp_path / "d.csv", TABLE, tmp_path, label="4")) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b,c\n1,2,3\n", "3 columns"),
        ("a,b,c,d\n1,2,3\n", "row 1 has 3 columns"),
        ("a,b,c,d\n1,2,3,x\n", "'d' is 'x'"),
        ("a,b,c,d\n1,2,3,\n", "'d' is empty"),
        ("a,b,c,d\n1,2,3,nan\n", "NaN"),
        ("a,b,c,d,label\n1,2,3,4,\n", "empty label"),
        ("a,a,b,c\n1,2,3,4\n", "two columns"),
        ("a,b,c,d\n", "no samples"),
        ("\n", "column"),
        ("a,b,c,d\n1,2,3,\0\n", "'d' is"),
    ],
)
def test_csv_that_does_not_fit_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "d.csv").write_text(text)
    assert says in refused(tmp_path / "d.csv", TABLE, tmp_path)


def test_jsonl_takes_nested_inputs_and_plain_lists(tmp_path: Path) -> None:
    found = read(lines(tmp_path, {"inputs": {"x": [1, 2, 3, 4]}, "label": "a"}), TABLE, tmp_path)
    assert (found[0]["x"].tolist(), found.handle.labels) == ([1, 2, 3, 4], True)
    assert read(lines(tmp_path, [1, 2, 3, 4], [[5, 6, 7, 8]]), TABLE, tmp_path)[1]["x"].tolist() == [5, 6, 7, 8]


def test_labels_may_be_text_numbers_arrays_or_lists_of_different_lengths(tmp_path: Path) -> None:
    def labels(*values: Any) -> Any:
        found = read(lines(tmp_path, *({"x": [0] * 4, "label": value} for value in values)), TABLE, tmp_path).labels
        assert found is not None
        return [item.tolist() if isinstance(item, np.ndarray) else item for item in found]

    assert labels("a", "bc") == ["a", "bc"]
    assert labels(1, 2.5) == [1.0, 2.5]
    assert labels(2.5, 1, True) == [2.5, 1.0, 1.0]
    assert labels([1, 2], [3, 4]) == [[1, 2], [3, 4]]
    assert labels([1], [3, 4]) == [[1], [3, 4]]


# what is refused


def test_wrong_names_are_shown_beside_the_right_ones(tmp_path: Path) -> None:
    cause = refused(npz(tmp_path, id=np.ones((2, 3), int), mask=np.ones((2, 3), int)), TEXT, tmp_path)
    assert "no 'ids'" in cause
    assert "found 'id', 'mask'" in cause
    assert "ids int64[batch, tokens]" in cause


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (2, 4, 4, 5), (2, 4, 5, 3), (5,), (1, 1, 1, 3, 4, 5)])
def test_a_wrong_shape_or_rank_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    assert "float32[n, 3, 4, 5]" in refused(npz(tmp_path, image=np.zeros(shape)), IMAGE, tmp_path)


def test_channels_in_the_wrong_place_are_recognised(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="transpose"):
        data.ingest_here(npz(tmp_path, image=np.zeros((2, 4, 5, 3))), IMAGE, tmp_path / "s")


def test_a_named_axis_has_one_size_in_a_sample(tmp_path: Path) -> None:
    cause = refused(lines(tmp_path, {"ids": [1, 2, 3], "mask": [1, 1]}), TEXT, tmp_path)
    assert "'tokens' is 3 in 'ids' and 2 in 'mask'" in cause


def test_inputs_of_different_lengths_are_refused(tmp_path: Path) -> None:
    cause = refused(npz(tmp_path, ids=np.ones((2, 3), int), mask=np.ones((4, 3), int)), TEXT, tmp_path)
    assert "ids has 2, mask has 4" in cause


def test_labels_that_do_not_match_are_refused(tmp_path: Path) -> None:
    assert "3 samples and 2 labels" in refused(npz(tmp_path, x=np.ones((3, 4)), label=[1, 2]), TABLE, tmp_path)
    some = lines(tmp_path, {"x": [0] * 4, "label": 1}, {"x": [0] * 4})
    assert "no label" in refused(some, TABLE, tmp_path)
    mixed = lines(tmp_path, {"x": [0] * 4, "label": 1}, {"x": [0] * 4, "label": "one"})
    assert "label of type string" in refused(mixed, TABLE, tmp_path)
    assert "no label key 'kind'" in refused(npz(tmp_path, x=np.ones((3, 4))), TABLE, tmp_path, label="kind")
    assert "not a finite" in refused(npz(tmp_path, x=np.ones((1, 4)), label=[np.nan]), TABLE, tmp_path)


def test_empty_data_is_refused(tmp_path: Path) -> None:
    assert "no samples" in refused(npz(tmp_path, x=np.ones((0, 4))), TABLE, tmp_path)
    (tmp_path / "d.jsonl").write_text("\n\n")
    assert "no samples" in refused(tmp_path / "d.jsonl", TABLE, tmp_path)
    (tmp_path / "d.csv").touch()
    assert "empty" in refused(tmp_path / "d.csv", TABLE, tmp_path)
    np.savez(tmp_path / "none.npz")
    assert "no 'x'; found nothing" in refused(tmp_path / "none.npz", TABLE, tmp_path)


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    cause = refused(npz(tmp_path, x=np.array([[1], [1, 2]], object)), TABLE, tmp_path)
    assert "object array" in cause
    np.save(tmp_path / "d.npy", np.array([{}], object), allow_pickle=True)
    assert "object array" in refused(tmp_path / "d.npy", TABLE, tmp_path)


def test_an_archive_that_would_unpack_to_more_than_fits_is_refused_unread(tmp_path: Path) -> None:
    header = b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000000, 4), }"
    with zipfile.ZipFile(tmp_path / "d.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header.ljust(127) + b"\n" + bytes(1 << 20))
    assert "64000.0 GB" in refused(tmp_path / "d.npz", TABLE, tmp_path)
    with zipfile.ZipFile(tmp_path / "d.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header.replace(b"4000000000000, 4", b"4000, 4").ljust(127) + b"\n" + bytes(1 << 20))
    assert "promises 64000 bytes" in refused(tmp_path / "d.npz", TABLE, tmp_path)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    whole = npz(tmp_path, x=np.random.default_rng(0).random((50, 4))).read_bytes()
    for at in range(0, len(whole), 61):
        (tmp_path / "t.npz").write_bytes(whole[:at] or b"x")
        refused(tmp_path / "t.npz", TABLE, tmp_path)
    (tmp_path / "t.jsonl").write_text('{"x": [1, 2\n')
    assert "line 1 is not JSON" in refused(tmp_path / "t.jsonl", TABLE, tmp_path)
    (tmp_path / "t.jsonl").write_bytes(b"\xff\xfe\n")
    assert "UTF-8" in refused(tmp_path / "t.jsonl", TABLE, tmp_path)
    (tmp_path / "t.jsonl").write_text("[" * 100000)
    refused(tmp_path / "t.jsonl", TABLE, tmp_path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 7)), min_size=1, max_size=8), packed=st.booleans()
)
def test_an_npz_with_flipped_bits_gives_samples_or_a_readable_error(
    tmp_path: Path, flips: list[tuple[int, int]], packed: bool
) -> None:
    (np.savez_compressed if packed else np.savez)(tmp_path / "d.npz", x=np.ones((5, 4), np.float32), label=np.arange(5))
    content = bytearray((tmp_path / "d.npz").read_bytes())
    for at, bit in flips:
        content[at % len(content)] ^= 1 << bit
    (tmp_path / "d.npz").write_bytes(content)
    try:
        data.ingest_here(tmp_path / "d.npz", TABLE, tmp_path / "s")
    except InvalidInput:
        return


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=4)
    )
)
def test_any_json_gives_samples_or_a_readable_error(tmp_path: Path, value: Any) -> None:
    try:
        data.ingest_here(lines(tmp_path, {"x": value, "label": value}), TABLE, tmp_path / "s")
    except InvalidInput:
        return


def test_other_kinds_of_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "d.pkl").write_bytes(b"x")
    assert "no kind of data" in refused(tmp_path / "d.pkl", TABLE, tmp_path)
    assert "no samples at" in refused(tmp_path / "nothing.npz", TABLE, tmp_path)


def test_parquet_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d.parquet").write_bytes(b"PAR1PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidInput) as caught:
        data.ingest_here(tmp_path / "d.parquet", TABLE, tmp_path / "s")
    assert caught.value.command == "pip install pyarrow"


def test_parquet_rows_are_samples(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"ids": [[1, 2], [3]], "mask": [[1, 1], [1]], "label": [0, 1]})
    parquet.write_table(table, tmp_path / "d.parquet")
    found = read(tmp_path / "d.parquet", TEXT, tmp_path)
    assert (found.lengths(0), found.handle.labels) == ([2, 1], True)


# choosing, and making up


def test_a_limit_draws_samples_with_a_seed_and_keeps_their_order(tmp_path: Path) -> None:
    path = npz(tmp_path, x=np.repeat(np.arange(50), 4).reshape(50, 4), label=np.arange(50))
    first = read(path, TABLE, tmp_path, limit=10)
    labels = [] if first.labels is None else first.labels.tolist()
    assert len(first) == 10
    assert labels == sorted(labels)
    assert labels == [int(sample["x"][0]) for sample in first]
    assert read(path, TABLE, tmp_path, limit=10).handle.sha256 == first.handle.sha256
    assert read(path, TABLE, tmp_path, limit=10, seed=1).handle.sha256 != first.handle.sha256
    assert "10 of 50 drawn" in first.handle.origin
    assert len(read(lines(tmp_path, *([[0] * 4] * 9)), TABLE, tmp_path, limit=4)) == 4


def test_samples_are_made_up_from_the_signature_and_say_so(tmp_path: Path) -> None:
    of = model(
        input_ids=("int64", ["batch", "seq"]),
        attention_mask=("int64", ["batch", "past + seq"]),
        past=("float32", ["batch", 2, "past", 8]),
        photo=("float32", [None, 3, None, None]),
        words=("string", [None]),
    )
    found = read(None, of, tmp_path)
    assert (found.handle.kind, found.handle.labels) == ("synthetic", False)
    assert 32 <= len(found) <= 32e6 / found[0]["photo"].nbytes, "as many as fit into 32 MB, and at least 32"
    assert len(read(None, TABLE, tmp_path)) == 512
    assert "made up" in found.handle.origin
    assert found[0]["input_ids"].shape == (64,)
    assert found[0]["attention_mask"].tolist() == [1] * 80
    assert found[0]["photo"].shape == (3, 224, 224)
    assert read(None, of, tmp_path).handle.sha256 == found.handle.sha256
    assert read(None, of, tmp_path, seed=1).handle.sha256 != found.handle.sha256
    assert "how many axes" in refused(None, model(x=("float32", None)), tmp_path / "other")


# functions


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sources_for_test.py").write_text(
        "import numpy as np\n"
        "def pairs():\n    for n in range(3): yield np.full(4, n, np.float32), n\n"
        "def dicts():\n    return [{'x': [1, 2, 3, 4]}] * 5\n"
        "def endless():\n    while True: yield np.zeros(4)\n"
        "def broken():\n    yield np.zeros(4)\n    raise ValueError('no more')\n"
        "def nothing():\n    return None\n"
        "def double(inputs):\n    return {'x': np.asarray(inputs['x']) * 2}\n"
        "def flip(pixels):\n    return pixels.transpose(2, 0, 1).astype('float32') / 255\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sources_for_test", raising=False)


@pytest.mark.usefixtures("functions")
def test_a_function_yields_inputs_with_or_without_labels(tmp_path: Path) -> None:
    found = read("sources_for_test:pairs", TABLE, tmp_path)
    assert (found[2]["x"].tolist(), found.handle.labels) == ([2, 2, 2, 2], True)
    assert len(read("sources_for_test:dicts", TABLE, tmp_path)) == 5
    assert len(read("sources_for_test:endless", TABLE, tmp_path, limit=7)) == 7
    assert data.ingest("sources_for_test:pairs", TABLE, tmp_path / "w").count == 3


@pytest.mark.usefixtures("functions")
def test_a_function_that_fails_is_quoted(tmp_path: Path) -> None:
    cause = refused("sources_for_test:broken", TABLE, tmp_path)
    assert "ValueError: no more" in cause
    assert "sources_for_test.py, line 10" in cause
    assert "NoneType" in refused("sources_for_test:nothing", TABLE, tmp_path)
    assert "no 'missing'" in refused("sources_for_test:missing", TABLE, tmp_path)
    assert "no module" in refused("no_such_module_here:f", TABLE, tmp_path)


@pytest.mark.usefixtures("functions")
def test_preprocess_changes_the_inputs_of_any_source(tmp_path: Path) -> None:
    found = read(
        lines(tmp_path, {"x": [1, 2, 3, 4], "label": 0}), TABLE, tmp_path, preprocess="sources_for_test:double"
    )
    assert found[0]["x"].tolist() == [2, 4, 6, 8]


# images


def images(folder: Path, **classes: int) -> Path:
    image = pytest.importorskip("PIL.Image")
    for number, (name, count) in enumerate(classes.items()):
        (folder / "photos" / name).mkdir(parents=True)
        for at in range(count):
            pixels = np.full((8, 10, 3), 40 * number + at, np.uint8)
            image.fromarray(pixels).save(folder / "photos" / name / f"{at}.png")
    return folder / "photos"


def test_sub_folders_are_labels_and_pixels_stay_as_they_are(tmp_path: Path) -> None:
    found = read(images(tmp_path, cat=2, dog=3), IMAGE, tmp_path)
    assert found[0]["image"].shape == (3, 4, 5)
    assert [int(sample["image"].max()) for sample in found] == [0, 1, 40, 41, 42]
    assert found.labels is not None
    assert found.labels.tolist() == [0, 0, 1, 1, 1]
    assert "0=cat, 1=dog" in found.handle.origin
    assert "0 to 255" in found.handle.origin


def test_numbered_folders_are_their_numbers(tmp_path: Path) -> None:
    folder = images(tmp_path, **{"7": 1, "10": 1})
    labels = read(folder, IMAGE, tmp_path).labels
    assert labels is not None
    assert sorted(labels.tolist()) == [7, 10]


def test_images_are_scaled_shifted_and_laid_out_as_asked(tmp_path: Path) -> None:
    folder = images(tmp_path, a=1, b=1)
    of = model(image=("float32", [None, None, None, 3]))
    samples = data.ingest(folder, of, tmp_path / "s", image_size=6, mean=[0.5], std=[0.25, 0.5, 0.5])
    sample = SampleSet.open(samples.path)[1]["image"]
    assert sample.shape == (6, 6, 3)
    assert sample[0, 0] == pytest.approx([(40 / 255 - 0.5) / std for std in (0.25, 0.5, 0.5)], abs=1e-6)
    assert read(folder, of, tmp_path)[0]["image"].shape == (8, 10, 3)


def test_how_images_are_read_can_be_said_in_one_option(tmp_path: Path) -> None:
    folder = images(tmp_path, a=1, b=1)
    of = model(image=("float32", [None, None, None, 3]))
    said = data.ingest(folder, of, tmp_path / "s", preprocess="resize=6x7, mean=0.5, std=0.25/0.5/0.5, layout=nhwc")
    meant = data.ingest(folder, of, tmp_path / "s", image_size=(6, 7), mean=[0.5], std=[0.25, 0.5, 0.5], layout="NHWC")
    assert said.sha256 == meant.sha256
    assert SampleSet.open(said.path)[1]["image"].shape == (6, 7, 3)
    for wrong in ("resize=", "resize=0", "mean=grey", "layout=abc", "crop=3", "resize=6,std"):
        with pytest.raises(InvalidInput, match="--preprocess"):
            data.ingest(folder, of, tmp_path / "s", preprocess=wrong + ("" if "=" in wrong else "=1"))


@pytest.mark.usefixtures("functions")
def test_a_function_can_turn_pixels_into_inputs(tmp_path: Path) -> None:
    of = model(image=("float32", ["n", 3, 8, 10]))
    found = read(images(tmp_path, a=1), of, tmp_path, preprocess="sources_for_test:flip")
    assert found[0]["image"].shape == (3, 8, 10)


def test_folders_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    folder = images(tmp_path, a=1)
    assert "not one image" in refused(folder, TEXT, tmp_path)
    assert "channels" in refused(folder, model(image=("float32", [None, None, None, None])), tmp_path)
    (folder / "a" / "bad.png").write_bytes(b"not a picture")
    assert "bad.png is not a readable image" in refused(folder, IMAGE, tmp_path)
    (folder / "top.png").write_bytes(b"x")
    assert "both directly in it" in refused(folder, IMAGE, tmp_path)
    (tmp_path / "void").mkdir()
    assert "no images" in refused(tmp_path / "void", IMAGE, tmp_path)


def test_images_say_what_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").mkdir()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InvalidInput) as caught:
        data.ingest_here(tmp_path / "photos", IMAGE, tmp_path / "s")
    assert caught.value.command == "pip install pillow"


# hasten's own form


def test_arrays_can_be_written_directly(tmp_path: Path) -> None:
    samples = [{"a": np.arange(n), "b": np.float32(n)} for n in (2, 4)]
    handle = SampleSet.write(tmp_path / "set", samples, ["x", "y"])
    found = SampleSet.open(handle.path)
    assert (handle.path, handle.count) == (tmp_path / "set", 2)
    assert found[1]["a"].tolist() == [0, 1, 2, 3]
    assert found[-2]["b"] == 2
    assert found.labels is not None
    assert found.labels.tolist() == ["x", "y"]
    SampleSet.write(tmp_path / "set", samples[:1])
    assert len(SampleSet.open(tmp_path / "set")) == 1
    with pytest.raises(IndexError):
        SampleSet.open(tmp_path / "set")[1]


def test_a_damaged_set_is_reported(tmp_path: Path) -> None:
    handle = SampleSet.write(tmp_path / "set", [{"a": np.arange(4)}])
    (handle.path / "0.bin").write_bytes(b"1234")
    with pytest.raises(Failed, match="cannot be read"):
        SampleSet.open(handle.path)
    with pytest.raises(Failed):
        SampleSet.open(tmp_path / "nothing")


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Failed, match="cannot be written"):
        data.ingest_here(npz(tmp_path, x=np.ones((1, 4))), TABLE, tmp_path / "file" / "below")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.text(max_size=6)), min_size=1, max_size=6),
    st.sampled_from(["int8", "float32", "bool", "uint16"]),
)
def test_what_is_written_is_read(tmp_path: Path, shapes: list[tuple[int, int, str]], dtype: str) -> None:
    samples = [
        {"a": np.arange(rows * columns).reshape(rows, columns).astype(dtype), "t": np.array([text, "é"], object)}
        for rows, columns, text in shapes
    ]
    found = SampleSet.open(SampleSet.write(tmp_path / "set", samples).path)
    for sample, expected in zip(found, samples, strict=True):
        assert all(np.array_equal(sample[name], expected[name]) for name in expected)
        assert sample["a"].dtype == np.dtype(dtype)


def test_columns_in_order_become_inputs_of_one_number_each(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("first,second,label\n1.5,x,0\n2.5,y,1\n")
    single = model(a=("float32", ["n", 1]), b=("string", ["n", 1]))
    found = read(tmp_path / "t.csv", single, tmp_path)
    assert (found[1]["a"].tolist(), found[1]["b"].tolist()) == ([2.5], ["y"])


def test_features_in_parquet_are_found_by_name(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"id": [7, 8], "b": [1.0, None], "a": [3.0, 4.0], "label": [0, 1]})
    parquet.write_table(table, tmp_path / "t.parquet")
    flat = model(X=("float32", ["n", 2]))
    found = read(tmp_path / "t.parquet", flat, tmp_path, columns={"X": ["a", "b"]}, missing=True)
    assert found[0]["X"].tolist() == [3.0, 1.0]
    assert np.isnan(found[1]["X"][1])
