"""Nothing that a worker does reaches the parent as anything but an answer or a reason."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hasten.errors import Failed, HastenError, InvalidInput
from hasten.isolate import Limits, Outcome, Worker, WorkerFailed, run

HERE = Path(__file__).parent
PATIENCE = 30


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


def failure(function: str, payload: Any = None, limits: Limits | None = None, **options: Any) -> Outcome:
    with pytest.raises(WorkerFailed) as caught:
        run(f"misbehaving:{function}", payload, limits or Limits(seconds=PATIENCE), **options)
    assert caught.value.outcome.reason in caught.value.cause
    return caught.value.outcome


def is_gone(*pids: int) -> bool:
    """Waits until each process has ended; a zombie whose adopter does not reap it has ended too."""
    alive = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]

    def ended(process: psutil.Process) -> bool:
        try:
            return bool(process.status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True

    for _ in range(100):
        if all(ended(process) for process in alive):
            return True
        psutil.wait_procs(alive, timeout=0.1)
    return False


# Answers


def test_a_value_comes_back_as_it_was() -> None:
    value = {"text": "naïve \n\r\u2028 \ud800", "list": [1, 2.5, None, True], "nested": {"": {}}}
    assert run("misbehaving:echo", value) == value


def test_nan_and_infinity_survive_both_ways(worker: Worker) -> None:
    answer = worker.call("misbehaving:strange_floats", {"nan": math.nan, "plus": math.inf})
    assert math.isnan(answer["nan"])
    assert (answer["plus"], answer["minus"]) == (math.inf, -math.inf)


def test_a_payload_larger_than_a_pipe_comes_back(worker: Worker) -> None:
    assert worker.call("misbehaving:echo", "x" * 3_000_000) == "x" * 3_000_000


def test_state_lives_from_call_to_call(worker: Worker) -> None:
    worker.call("misbehaving:remember", 1)
    assert worker.call("misbehaving:remember", 2) == [1, 2]


def test_progress_reaches_the_parent() -> None:
    seen: list[tuple[float | None, str]] = []
    run("misbehaving:report_progress", None, on_progress=lambda *progress: seen.append(progress))
    assert seen == [(0.5, "half way"), (None, "somewhere")]


def test_progress_after_the_answer_neither_blocks_nor_counts_for_the_next_call() -> None:
    with Worker(Limits(seconds=PATIENCE), on_progress=None) as worker:
        worker.call("misbehaving:late_progress", None)
        for number in range(20):
            assert worker.call("misbehaving:echo", number) == number


def test_an_error_in_the_progress_callback_ends_the_call_and_the_worker() -> None:
    def broken(fraction: float | None, text: str) -> None:
        raise RuntimeError("the screen is gone")

    with Worker(on_progress=broken) as worker:
        with pytest.raises(RuntimeError, match="the screen is gone"):
            worker.call("misbehaving:report_progress", None)
        assert is_gone(worker.pid)


def test_calls_from_several_threads_take_turns(worker: Worker) -> None:
    answers: dict[int, Any] = {}

    def ask(number: int) -> None:
        answers[number] = worker.call("misbehaving:echo", number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert answers == {number: number for number in range(8)}


def test_a_worker_outlives_the_thread_that_started_it() -> None:
    started: list[Worker] = []
    thread = threading.Thread(target=lambda: started.append(Worker()))
    thread.start()
    thread.join()
    with started[0] as worker:
        assert worker.call("misbehaving:echo", 1) == 1


# Its surroundings


def test_a_worker_has_the_parents_path_and_folder_and_a_session_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in_the_users_folder.py").write_text("def answer(payload, scope): return 42")
    monkeypatch.chdir(tmp_path)
    with Worker() as worker:
        assert worker.call("in_the_users_folder:answer", None) == 42
        found = worker.call("misbehaving:describe_process", None)
    assert found["pid"] == found["session"] == worker.pid
    assert found["cwd"] == str(tmp_path)
    assert [entry for entry in sys.path if entry] == [entry for entry in found["path"] if entry in sys.path]


def test_a_file_in_the_users_folder_cannot_shadow_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    assert run("misbehaving:echo", "fine") == "fine"


def test_a_worker_starts_without_any_heavy_library(worker: Worker) -> None:
    assert worker.call("misbehaving:describe_process", None)["heavy"] == []


def test_cores_are_pinned_and_thread_pools_sized_to_them() -> None:
    core = max(os.sched_getaffinity(0))
    found = run("misbehaving:describe_process", None, Limits(cpus=(core,)))
    assert (found["cpus"], found["threads"]) == ([core], "1")


def test_niceness_is_added() -> None:
    assert run("misbehaving:describe_process", None, Limits(nice=3))["nice"] == min(os.nice(0) + 3, 19)


@pytest.mark.parametrize("wrong", [{"memory_bytes": 0}, {"seconds": 0}, {"cpus": ()}, {"cpus": (9999,)}])
def test_limits_that_cannot_be_kept_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Limits(**wrong)


def test_peak_memory_is_that_of_the_worker(worker: Worker) -> None:
    worker.call("misbehaving:echo", None)
    before = worker.peak_memory_bytes
    worker.call("misbehaving:allocate", 200_000_000)
    after = worker.peak_memory_bytes
    assert before is not None
    assert after is not None
    assert 180_000_000 < after - before < 260_000_000


# Failures


def test_a_segmentation_fault_is_named_and_its_stack_kept() -> None:
    outcome = failure("fault")
    assert (outcome.status, outcome.reason) == ("crashed", "killed by signal 11 (segmentation fault)")
    assert "in fault" in outcome.stderr


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGTERM, signal.SIGKILL])
def test_every_signal_that_kills_is_named(number: signal.Signals) -> None:
    outcome = failure("signal_itself", int(number))
    assert outcome.status == "crashed"
    assert outcome.reason.startswith(f"killed by signal {int(number)} (")


@pytest.mark.parametrize("function", ["hang", "hang_holding_the_interpreter"])
def test_a_hang_is_ended_by_the_time_limit(function: str) -> None:
    outcome = failure(function, None, Limits(seconds=0.5))
    assert (outcome.status, outcome.reason) == ("timeout", "no answer within 0.5 s")
    assert outcome.seconds >= 0.5


def test_the_time_limit_is_per_call_and_can_be_given_with_it() -> None:
    with Worker(Limits(seconds=600)) as worker, pytest.raises(WorkerFailed, match=r"no answer within 0\.2 s"):
        worker.call("misbehaving:hang", None, seconds=0.2)


@pytest.mark.parametrize("function", ["allocate_without_bound", "allocate_in_a_child"])
def test_memory_without_bound_is_ended_by_the_memory_limit(function: str) -> None:
    outcome = failure(function, None, Limits(seconds=PATIENCE, memory_bytes=300_000_000))
    assert (outcome.status, outcome.reason) == ("memory", "memory limit of 300 MB exceeded")
    assert outcome.peak_memory_bytes is not None
    assert outcome.peak_memory_bytes > 100_000_000


def test_a_worker_within_its_memory_limit_is_left_alone() -> None:
    assert run("misbehaving:allocate", 50_000_000, Limits(memory_bytes=2_000_000_000)) == 50_000_000


def test_garbage_on_stdout_goes_to_stderr_and_only_its_tail_is_kept(worker: Worker) -> None:
    assert worker.call("misbehaving:garbage_on_stdout", None) == "answer"
    assert worker.stderr.endswith("written by native code\nthe end\n")
    assert len(worker.stderr.encode("latin-1", "replace")) <= 64 << 10


@pytest.mark.parametrize("function", ["close_streams", "scribble_on_every_descriptor"])
def test_an_answer_survives_what_was_done_to_the_streams(function: str, worker: Worker) -> None:
    assert worker.call(f"misbehaving:{function}", None, seconds=PATIENCE) == "answer"
    assert worker.call("misbehaving:echo", "and again", seconds=PATIENCE) == "and again"


def test_a_worker_that_closes_its_channel_is_not_waited_for() -> None:
    assert failure("close_every_descriptor").reason == "closed its message channel before answering"


@pytest.mark.parametrize("status", [0, 7])
def test_leaving_early_is_a_failure_whatever_the_status(status: int) -> None:
    outcome = failure("exit_early", status)
    assert (outcome.status, outcome.reason) == ("crashed", f"exited with status {status} before answering")


def test_sys_exit_is_leaving_early() -> None:
    assert failure("leave_by_sys_exit").reason == "exited with status 3 before answering"


def test_death_is_noticed_though_a_forked_child_keeps_the_channel_open() -> None:
    assert failure("fork_and_die").reason == "exited with status 5 before answering"


@pytest.mark.parametrize("function", ["exit_early", "fork_and_die"])
def test_death_is_noticed_where_the_sandbox_forbids_pidfds(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(pid: int) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", forbidden)
    assert failure(function, 5).reason == "exited with status 5 before answering"


def test_a_worker_that_cannot_be_started_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    before = psutil.Process().num_fds()
    monkeypatch.setattr(sys, "executable", "/no/such/interpreter")
    with pytest.raises(Failed, match="a worker process cannot be started"):
        Worker()
    assert psutil.Process().num_fds() == before


def test_a_dead_worker_takes_no_further_call(worker: Worker) -> None:
    with pytest.raises(WorkerFailed):
        worker.call("misbehaving:exit_early", 0)
    with pytest.raises(Failed, match="the worker has ended: exited with status 0"):
        worker.call("misbehaving:echo", 1)


def test_a_worker_killed_between_calls_is_reported_by_the_next(worker: Worker) -> None:
    worker.call("misbehaving:echo", 1)
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerFailed, match="killed by signal 9"):
        worker.call("misbehaving:echo", "x" * 3_000_000, seconds=PATIENCE)


# Errors


def test_a_hasten_error_is_raised_as_it_was(worker: Worker) -> None:
    with pytest.raises(InvalidInput) as caught:
        worker.call("misbehaving:raise_invalid", None)
    assert type(caught.value) is InvalidInput
    assert (caught.value.cause, caught.value.fix, caught.value.command) == ("the cause", "the fix", "the command")
    assert worker.call("misbehaving:echo", "still usable") == "still usable"


def test_an_error_class_that_the_parent_does_not_know_becomes_its_nearest_known_base(worker: Worker) -> None:
    with pytest.raises(HastenError) as caught:
        worker.call("misbehaving:raise_private", None)
    assert caught.value.cause == "the cause"
    assert caught.value.exit_code == HastenError.exit_code


def test_what_caused_a_hasten_error_is_kept_on_stderr(worker: Worker) -> None:
    with pytest.raises(Failed, match="that is no number"):
        worker.call("misbehaving:raise_chained", None)
    assert "invalid literal for int()" in worker.stderr


def test_any_other_error_is_one_line_and_its_traceback_is_kept(worker: Worker) -> None:
    with pytest.raises(WorkerFailed) as caught:
        worker.call("misbehaving:raise_other", None)
    outcome = caught.value.outcome
    assert (outcome.status, outcome.reason) == ("error", "ValueError: seven is not a size")
    assert "Traceback" in outcome.stderr
    assert "in raise_other" in outcome.stderr
    assert "Traceback" not in str(caught.value)
    assert worker.call("misbehaving:echo", "still usable") == "still usable"


def test_endless_recursion_is_an_error() -> None:
    assert failure("recurse").reason.startswith("RecursionError")


@pytest.mark.parametrize("function", ["return_a_set", "return_endless_nesting", "return_too_much"])
def test_an_answer_that_json_cannot_carry_is_an_error(function: str) -> None:
    outcome = failure(function)
    assert outcome.status == "error"
    assert outcome.reason.startswith("it returned what JSON cannot carry: ")


def test_a_payload_that_json_cannot_carry_leaves_the_worker_usable(worker: Worker) -> None:
    with pytest.raises(TypeError):
        worker.call("misbehaving:echo", {1, 2})
    assert worker.call("misbehaving:echo", 1) == 1


def test_a_name_that_resolves_to_nothing_is_invalid_input(worker: Worker) -> None:
    with pytest.raises(InvalidInput, match="there is no module 'nowhere_at_all'"):
        worker.call("nowhere_at_all:f", None)


def test_a_worker_inside_a_worker_fails_with_its_own_reason() -> None:
    assert run("misbehaving:run_inner", {"function": "echo", "payload": 5}) == 5
    outcome = failure("run_inner", {"function": "exit_early", "payload": 4})
    assert outcome.reason == "exited with status 4 before answering"


# Ends


@pytest.mark.parametrize("leaves_the_session", [False, True])
def test_closing_a_worker_ends_its_children(leaves_the_session: bool) -> None:
    with Worker() as worker:
        child = worker.call("misbehaving:start_a_child", leaves_the_session)
        assert psutil.pid_exists(child)
    assert is_gone(worker.pid, child)


@pytest.mark.parametrize("leaves_the_session", [False, True])
def test_a_crash_ends_the_workers_children(leaves_the_session: bool) -> None:
    children: list[int] = []
    failure("start_a_child_and_crash", leaves_the_session, on_progress=lambda _, text: children.append(int(text)))
    assert len(children) == 1
    assert is_gone(*children)


def test_closing_twice_or_after_a_failure_is_harmless(worker: Worker) -> None:
    worker.close()
    worker.close()
    with pytest.raises(Failed, match="the worker has ended: closed"):
        worker.call("misbehaving:echo", 1)


def test_closing_from_another_thread_ends_a_call_that_is_going_on() -> None:
    with Worker(on_progress=lambda *_: threading.Thread(target=busy.close).start()) as busy:
        with pytest.raises(WorkerFailed, match="closed during a call"):
            busy.call("misbehaving:hang", None, seconds=PATIENCE)
        assert is_gone(busy.pid)


def test_closing_from_the_progress_callback_ends_the_call() -> None:
    with (
        Worker(on_progress=lambda *_: busy.close()) as busy,
        pytest.raises(WorkerFailed, match="closed during a call"),
    ):
        busy.call("misbehaving:hang", None, seconds=PATIENCE)


def test_a_worker_that_ignores_ctrl_c_leaves_that_to_the_parent(worker: Worker) -> None:
    assert worker.call("misbehaving:interrupt_itself", None) == "still here"


INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, sys.argv[1])
from hasten.isolate import Worker
with Worker(on_progress=lambda *_: signal.raise_signal(signal.SIGINT)) as worker:
    try:
        worker.call("misbehaving:hang", None, seconds=60)
    except KeyboardInterrupt:
        print(worker.pid, worker.alive)
"""


def test_ctrl_c_in_the_parent_kills_the_worker_and_is_raised() -> None:
    """In a process of its own: whoever runs the tests is not to hear it."""
    command = [sys.executable, "-c", INTERRUPTED, str(HERE)]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE).stdout
    pid, alive = said.split()
    assert alive == "False"
    assert is_gone(int(pid))


def test_user_code_that_waits_for_all_its_children_does_not_wait_for_ours(worker: Worker) -> None:
    assert worker.call("misbehaving:wait_for_all_children", None, seconds=PATIENCE) == "none left"


def test_closing_leaves_no_descriptor_thread_or_process_behind() -> None:
    run("misbehaving:echo", 1)
    this = psutil.Process()
    before = this.num_fds(), threading.active_count(), len(this.children())
    run("misbehaving:echo", 1)
    failure("exit_early", 1)
    failure("allocate_without_bound", None, Limits(seconds=PATIENCE, memory_bytes=200_000_000))
    assert (this.num_fds(), threading.active_count(), len(this.children())) == before


PARENT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started without it
sys.path.insert(0, sys.argv[1])
from hasten.isolate import Worker
with Worker(on_progress=lambda *_: print(worker.pid, child, inner, flush=True)) as worker:
    child = worker.call("misbehaving:start_a_child", True)
    inner = worker.call("misbehaving:hold_inner", None)
    worker.call(sys.argv[2], None)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_when_the_parent_dies_its_worker_dies_with_all_that_it_started(number: signal.Signals) -> None:
    command = [sys.executable, "-c", PARENT, str(HERE), "misbehaving:hang"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 3
        parent.send_signal(number)
        parent.wait(PATIENCE)
    assert is_gone(*pids)


def test_a_worker_without_a_call_dies_with_its_parent_too() -> None:
    code = "from hasten.isolate import Worker\nimport os\nprint(Worker().pid, flush=True)\nos._exit(0)"
    printed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert is_gone(int(printed))
