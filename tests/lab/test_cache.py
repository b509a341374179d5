from __future__ import annotations

from pathlib import Path

import pytest

from hasten.lab.cache import VariantCache


class Clock:
    now = 1e6

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(tmp_path: Path, clock: Clock) -> VariantCache:
    return VariantCache(tmp_path / "variants", 3000, clock)


def build(cache: VariantCache, key: str, size: int = 1000) -> Path:
    folder = cache.folder / key
    folder.mkdir(parents=True)
    (folder / "model.bin").write_bytes(b"x" * size)
    return folder


def test_what_was_built_is_found_again_by_its_key(cache: VariantCache, tmp_path: Path) -> None:
    folder = build(cache, "a")
    assert cache.find("a") is None
    cache.add("a")
    assert cache.find("a") == folder
    assert cache.size_bytes == 1000
    assert VariantCache(tmp_path / "variants", 1).find("a") == folder


def test_over_the_limit_what_was_used_longest_ago_goes(cache: VariantCache, clock: Clock) -> None:
    for key in "abc":
        build(cache, key)
        cache.add(key)
    cache.find("a")
    clock.now += 4000
    build(cache, "d")
    cache.add("d")
    assert sorted(path.name for path in cache.folder.iterdir() if path.is_dir()) == ["a", "c", "d"]
    assert cache.find("b") is None
    assert cache.size_bytes == 3000


def test_what_was_used_within_the_hour_stays_even_over_the_limit(cache: VariantCache) -> None:
    for key in "abcdef":
        build(cache, key)
        cache.add(key)
    assert cache.size_bytes == 6000
    assert cache.evict(keep=("a",), grace_s=0) == ("b", "c", "d")
    assert cache.find("a") is not None


def test_something_too_large_for_the_cache_stays_while_it_is_used(cache: VariantCache, clock: Clock) -> None:
    build(cache, "huge", 10_000)
    cache.add("huge")
    assert cache.find("huge") is not None
    clock.now += 4000
    assert cache.evict() == ("huge",)
    assert not (cache.folder / "huge").exists()


def test_a_folder_that_vanished_is_a_miss(cache: VariantCache) -> None:
    folder = build(cache, "a")
    cache.add("a")
    (folder / "model.bin").unlink()
    folder.rmdir()
    assert cache.find("a") is None
    assert cache.size_bytes == 0


def test_a_single_file_can_be_cached_too(cache: VariantCache, tmp_path: Path) -> None:
    file = tmp_path / "blob"
    file.write_bytes(b"x" * 5000)
    cache.add("blob", file)
    assert cache.find("blob") == file
    assert cache.evict(grace_s=-1) == ("blob",)
    assert not file.exists()
