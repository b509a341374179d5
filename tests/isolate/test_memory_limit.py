"""Memory of a process tree, and the cgroup that limits it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.isolate.memory import Cgroup, process_tree, resident_bytes


def controls_memory(path: Path, **files: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name.replace("_", ".", 1)).write_text(text)
    return path


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A session scope as systemd makes it: the slice above hands the memory controller down, the scope does not."""
    (controls_memory(tmp_path / "app.slice") / "cgroup.subtree_control").write_text("cpu memory pids\n")
    scope = controls_memory(tmp_path / "app.slice" / "session.scope", memory_max="max\n", cpu_max="max 100000\n")
    (scope / "cgroup.subtree_control").write_text("")
    return scope


def test_a_tree_counts_its_children() -> None:
    code = "b = b'x' * 50_000_000; print(len(b), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alone = resident_bytes([child.pid])
        assert alone > 50_000_000
        assert child.pid in process_tree(os.getpid())
        assert resident_bytes(process_tree(os.getpid())) > alone
        child.communicate("\n")
    assert resident_bytes(process_tree(child.pid)) == 0


def test_a_cgroup_is_made_beside_an_unlimited_one_that_holds_processes(own: Path) -> None:
    group = Cgroup.create(300_000_000, own)
    assert group is not None
    assert group.path.parent == own.parent
    assert (group.path / "memory.max").read_text() == "300000000"
    assert (group.path / "memory.oom.group").read_text() == "1"
    assert group.add(1234)
    assert (group.path / "cgroup.procs").read_text() == "1234"


def test_a_cgroup_is_made_below_one_that_hands_the_controller_down(own: Path) -> None:
    (own / "cgroup.subtree_control").write_text("memory\n")
    group = Cgroup.create(1, own)
    assert group is not None
    assert group.path.parent == own


@pytest.mark.parametrize("limit", ["memory.max", "cpu.max"])
def test_a_limit_on_this_process_is_never_escaped(own: Path, limit: str) -> None:
    (own / limit).write_text("200000 100000\n")
    assert Cgroup.create(1, own) is None


def test_without_the_memory_controller_there_is_no_cgroup(own: Path) -> None:
    (own.parent / "cgroup.subtree_control").write_text("cpu\n")
    assert Cgroup.create(1, own) is None


def test_an_out_of_memory_kill_is_read_from_its_events(own: Path) -> None:
    group = Cgroup.create(1, own)
    assert group is not None
    assert not group.exceeded()
    (group.path / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 1\noom_kill 1\noom_group_kill 1\n")
    assert group.exceeded()
