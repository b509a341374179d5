"""What is shown while a verb works."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from hasten.cli.live import Board, Line, Plain, clock_text
from hasten.events import Event


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def screen(width: int = 100, height: int = 40) -> Console:
    return Console(width=width, height=height, file=io.StringIO(), force_terminal=True, color_system=None)


def drawn(watch: Line) -> list[str]:
    with watch.console.capture() as capture:
        watch.console.print(*watch.draw(), sep="\n")
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (67.9, "1:07"), (3723, "1:02:03"), (-5, "0:00")])
def test_times_read_like_a_clock(seconds, text):
    assert clock_text(seconds) == text


@pytest.mark.parametrize("width", [80, 100])
def test_the_live_table_has_the_best_on_top_and_fits(study, width):
    board = Board(screen(width), budget_s=60, title="cnn.onnx", clock=Clock())
    for trial in study.trials[:-1]:
        board(Event("trial", "", 0.5, trial))
    lines = drawn(board)
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if " | " in line or line.startswith(("openvino", "onnxruntime"))]
    assert rows[0].startswith("int8 | openvino fp32")
    assert "5.48x" in rows[0]
    assert "confirmed" in rows[0]
    assert "failed" in rows[-1]


def test_a_low_terminal_shows_the_best_and_counts_the_rest(study):
    board = Board(screen(height=14), clock=Clock())
    for trial in study.trials[:-1]:
        board(Event("trial", "", 0.5, trial))
    lines = drawn(board)
    assert len(lines) <= 14
    assert any("and 2 more" in line for line in lines)


def test_the_time_left_is_counted_from_when_the_search_began(study):
    clock = Clock()
    board = Board(screen(), budget_s=60, clock=clock)
    clock.now += 25  # measuring the machine, before the budget begins to count
    assert board.time_words == "0:25, budget 1:00"
    clock.now += 15
    board(Event("trial", "", 15 / 60, study.trials[0]))
    assert board.time_words == "0:45 left of 1:00"
    assert board.share == pytest.approx(0.25)
    clock.now += 50
    assert board.time_words == "finishing"
    assert board.share == 0.99


def test_the_stage_what_moves_inside_it_and_the_last_note_are_shown():
    line = Line(screen(), clock=Clock())
    line(Event("stage", "racing 3 finalists", 0.65))
    line(Event("round", "round 7 of the final race"))
    line(Event("note", "this machine is noisy"))
    text = "\n".join(drawn(line))
    for part in ("racing 3 finalists", "round 7 of the final race", "this machine is noisy", "65%"):
        assert part in text
    line(Event("stage", "confirming"))
    assert "round 7" not in "\n".join(drawn(line))


def test_plain_lines_say_everything_once(study):
    console = Console(width=60, file=io.StringIO())
    clock = Clock()
    with Plain(console, clock=clock) as watch:
        watch(Event("stage", "trying what could help"))
        watch(Event("stage", "trying what could help"))
        clock.now += 61
        watch(Event("trial", "", 0.5, study.trials[2]))
        watch(Event("round", "round 1"))
    assert console.file.getvalue().splitlines() == [
        "[ 0:00] trying what could help",
        "[ 1:01]     5.48x  (5.32–5.64)  int8 | openvino fp32 2x1 | batch 64 sort  confirmed",
    ]
