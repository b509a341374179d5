from pathlib import Path

from hasten.measure import memory


def test_the_peak_is_at_least_the_present_size() -> None:
    assert 0 < memory.current_bytes() <= memory.peak_bytes()


def test_the_peak_can_start_anew_where_the_system_lets_it() -> None:
    block = bytearray(64 << 20)
    block[:: 1 << 12] = b"x" * len(block[:: 1 << 12])
    before = memory.peak_bytes()
    del block
    if memory.reset_peak():
        assert memory.peak_bytes() < before


def test_sizes_are_read_in_kibibytes(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("Name:\tpython\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n")
    assert memory.peak_bytes(tmp_path) == 2 << 20
    assert memory.current_bytes(tmp_path) == 1 << 20


def test_a_system_without_proc_has_no_sizes_and_no_reset(tmp_path: Path) -> None:
    assert memory.peak_bytes(tmp_path / "none") == 0
    assert not memory.reset_peak(tmp_path / "none")
