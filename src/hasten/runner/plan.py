"""Decides which samples form which batch: a pure batching policy over sample lengths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any, Literal

from hasten.errors import InvalidInput
from hasten.runner.packing import Packed, pack


@dataclass(frozen=True)
class RunnerSettings:
    """`[runner]` of a recipe.

    `batch` is the most samples that run together. `sort` orders samples by length first, so that a batch holds samples
    of like length. The form "bucket" pads each sample to the smallest of `buckets` that holds it, and runs
    `batch_tokens // bucket` rows together where `batch_tokens` is given, else `batch`. `static` compiles one fixed
    shape for each bucket, and fills the last batch up. The form "pack" lays samples end to end in `rows` of
    `row_tokens`, at most `segments` of them in each (see `runner.packing`).
    """

    batch: int = 1
    form: Literal["batch", "bucket", "pack"] = "batch"
    sort: bool = False
    buckets: tuple[int, ...] = ()
    static: bool = False
    batch_tokens: int | None = None
    row_tokens: int | None = None
    rows: int | None = None
    segments: int = 16

    @classmethod
    def from_recipe(cls, runner: Mapping[str, Any]) -> RunnerSettings:
        check_keys("[runner]", cls, runner)
        for key in ("batch", "batch_tokens", "row_tokens", "rows", "segments"):
            if key in runner and not _positive(runner[key]):
                raise InvalidInput(f"[runner] {key} = {runner[key]!r} makes no sense", "give a whole number from 1 up")
        for key in ("sort", "static"):
            if not isinstance(runner.get(key, False), bool):
                raise InvalidInput(f"[runner] {key} is true or false, not {runner[key]!r}")
        form = runner.get("form", "batch")
        if form not in ("batch", "bucket", "pack"):
            raise InvalidInput(f"[runner] form = {form!r} is not known", "use batch, bucket or pack")
        if (form == "pack") != ("row_tokens" in runner) or ("row_tokens" in runner) != ("rows" in runner):
            raise InvalidInput(
                "[runner] row_tokens, rows and form do not fit", 'give form = "pack" together with both of them'
            )
        buckets = runner.get("buckets", ())
        if not isinstance(buckets, list | tuple) or not all(_positive(size) for size in buckets):
            raise InvalidInput(f"[runner] buckets = {buckets!r} makes no sense", "give lengths, such as [32, 64, 128]")
        if (form == "bucket") != bool(buckets):
            raise InvalidInput(
                "[runner] buckets and form do not fit", 'give form = "bucket" together with buckets = [LENGTH, ...]'
            )
        if form != "bucket" and "batch_tokens" in runner:
            raise InvalidInput("[runner] batch_tokens needs buckets", 'give form = "bucket" and buckets as well')
        return cls(**{**runner, "buckets": tuple(sorted(set(buckets)))})

    def rows_of(self, length: int | None) -> int:
        """The most rows of a batch whose samples are padded to `length`."""
        if self.batch_tokens is None or length is None:
            return self.batch
        return max(1, self.batch_tokens // max(1, length))


def check_keys(what: str, settings: Any, given: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` where `given` has keys that the dataclass `settings` has no field for."""
    known = [field.name for field in fields(settings)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise InvalidInput(f"{what} has unknown keys: {', '.join(unknown)}", f"keys are: {', '.join(known)}")


@dataclass(frozen=True)
class Batch:
    """`indices` of the samples that run together, padded to `length` (None: as they are), in `size` rows.

    `size` exceeds the number of indices where a fixed shape is filled up by repeating the last sample.
    """

    indices: tuple[int, ...]
    length: int | None
    size: int


def plan(
    lengths: Sequence[int] | None, count: int, settings: RunnerSettings, can_pad: bool, fixed_rows: int | None = None
) -> Sequence[Batch | Packed]:
    """Batches that cover `range(count)` once each.

    `lengths` are the samples' sizes along the variable axis, or None where all have the same shape. Without `can_pad`
    only samples of equal length share a batch (any number that tells shapes apart then does for a length).
    `fixed_rows` is the batch size of a model that has just one.
    """
    if lengths is None or not count:
        order, rows = list(range(count)), fixed_rows or settings.batch
        return _chunks(order, None, rows, fixed_rows is not None or settings.static)
    if not can_pad:
        groups = _by_length(lengths)
        return [
            batch
            for length in sorted(groups, reverse=True)
            for batch in _chunks(
                groups[length],
                length,
                fixed_rows or settings.rows_of(length),
                fixed_rows is not None or settings.static,
            )
        ]
    if settings.form == "pack" and settings.row_tokens and settings.rows:
        return pack(lengths, settings.row_tokens, settings.rows, settings.segments)
    if settings.form == "bucket":
        return _bucketed(lengths, settings, fixed_rows)
    rows, filled = fixed_rows or settings.batch, fixed_rows is not None
    if settings.static:
        order = sorted(range(count), key=lambda i: -lengths[i]) if settings.sort else list(range(count))
        return _chunks(order, max(lengths), rows, True)
    if settings.sort:
        return _sorted(lengths, rows, filled)
    return [
        Batch(batch.indices, max(lengths[i] for i in batch.indices), batch.size)
        for batch in _chunks(range(count), None, rows, filled)
    ]


def _sorted(lengths: Sequence[int], rows: int, filled: bool) -> list[Batch]:
    """Batches of like lengths, longest first: the last to finish are short, and buffers grow once.

    The odd batch stands where it pads least among all: no other plan with batches of these sizes pads less.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    full, odd = divmod(len(order), rows)
    if odd and not filled:
        # Tokens of the full batches below each place, and of those above it, which then lie `odd` samples higher.
        below = [0, *accumulate(rows * lengths[order[(n + 1) * rows - 1]] for n in range(full))]
        above = [0, *accumulate(rows * lengths[order[-1 - n * rows]] for n in range(full))]
        costs = [below[n] + odd * lengths[order[n * rows + odd - 1]] + above[full - n] for n in range(full + 1)]
        cut = costs.index(min(costs)) * rows
    else:
        cut = full * rows
    parts = [order[:cut], order[cut : cut + odd], order[cut + odd :]]
    chunks = [batch.indices for part in parts for batch in _chunks(part, None, rows, filled)]
    return [Batch(chunk, lengths[chunk[-1]], rows if filled else len(chunk)) for chunk in reversed(chunks)]


def _bucketed(lengths: Sequence[int], settings: RunnerSettings, fixed_rows: int | None) -> list[Batch]:
    """Each sample in its bucket, longest first; what fits no bucket shares one as long as the longest.

    Rows of a fixed shape that would only be filled up are given to samples of shorter buckets: they cost nothing there.
    """
    bounds = [*settings.buckets, max(*lengths, settings.buckets[-1])]
    bucket = [next(bound for bound in bounds if length <= bound) for length in lengths]
    order = sorted(range(len(lengths)), key=lambda i: (-bucket[i], -lengths[i] if settings.sort else 0))
    filled = settings.static or fixed_rows is not None
    found: list[Batch] = []
    at = 0
    while at < len(order):
        bound = bucket[order[at]]
        rows = fixed_rows or settings.rows_of(bound)
        members = order[at : at + rows]
        if not filled:
            members = [index for index in members if bucket[index] == bound]
        found.append(Batch(tuple(members), bound, rows if filled else len(members)))
        at += len(members)
    return found


def _chunks(order: Sequence[int], length: int | None, rows: int, filled: bool) -> list[Batch]:
    chunks = [tuple(order[at : at + rows]) for at in range(0, len(order), rows)]
    return [Batch(chunk, length, rows if filled else len(chunk)) for chunk in chunks]


def _by_length(lengths: Sequence[int]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = defaultdict(list)
    for index, length in enumerate(lengths):
        groups[length].append(index)
    return groups


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
