"""The exact solver against brute force, and the repair of wrong predictions."""

from __future__ import annotations

from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.levers.assignment import loss_of, repair, safest, solve, time_of

amounts = st.one_of(st.just(0.0), st.floats(1e-6, 1.0), st.sampled_from([0.1, 0.2, 0.3]))
times = st.floats(0.5, 1000.0)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    levels = draw(st.sampled_from([("fp32", "int8"), ("fp32", "bf16", "int8")]))
    count = draw(st.integers(1, 6))
    groups = [
        {
            "name": f"g{i}",
            "loss": {level: 0.0 if level == "fp32" else draw(amounts) for level in levels},
            "time_us": {level: draw(times) for level in levels},
        }
        for i in range(count)
    ]
    return {"groups": groups, "levels": list(levels)}


def every(table: dict[str, Any]) -> list[dict[str, str]]:
    names = [group["name"] for group in table["groups"]]
    return [dict(zip(names, choice, strict=True)) for choice in product(table["levels"], repeat=len(names))]


@given(tables(), st.one_of(st.just(0.0), st.floats(1e-4, 3.0), st.sampled_from([0.1, 0.3, 0.6])))
@settings(max_examples=150, deadline=None)
def test_the_solver_finds_what_brute_force_finds(table: dict[str, Any], allowed: float) -> None:
    chosen = solve(table, allowed)
    best = min(time_of(table, other) for other in every(table) if loss_of(table, other) <= allowed)
    assert loss_of(table, chosen) <= allowed
    assert time_of(table, chosen) <= best * (1 + 1e-6)


@given(tables(), st.floats(1e-4, 3.0), st.floats(1.0, 50.0))
@settings(max_examples=80, deadline=None)
def test_a_repair_loses_strictly_less_or_gives_up(table: dict[str, Any], allowed: float, wrong_by: float) -> None:
    chosen = solve(table, allowed)
    measured = loss_of(table, chosen) * wrong_by
    tighter = repair(table, chosen, measured, allowed)
    if tighter is None:
        assert loss_of(table, chosen) <= loss_of(table, safest(table)) * (1 + 2e-6)
    else:
        assert loss_of(table, tighter) < loss_of(table, chosen)


def test_a_loss_below_zero_is_noise_and_pays_for_nothing() -> None:
    table = {
        "groups": [
            {"name": "a", "loss": {"fp32": 0.0, "int8": -5.0}, "time_us": {"fp32": 2.0, "int8": 1.0}},
            {"name": "b", "loss": {"fp32": 0.0, "int8": 1.0}, "time_us": {"fp32": 9.0, "int8": 1.0}},
        ]
    }
    assert solve(table, 0.5) == {"a": "int8", "b": "fp32"}


def test_where_nothing_is_allowed_the_safest_assignment_comes_out() -> None:
    table = {"groups": [{"name": "a", "loss": {"bf16": 0.2, "int8": 0.4}, "time_us": {"bf16": 2.0, "int8": 1.0}}]}
    assert solve(table, 0.1) == {"a": "bf16"}


def test_a_slow_quantised_operator_stays_as_it_is() -> None:
    table = {"groups": [{"name": "a", "loss": {"bf16": 0.0, "int8": 0.0}, "time_us": {"bf16": 1.0, "int8": 3.0}}]}
    assert solve(table, 1.0) == {"a": "bf16"}


def test_the_solver_prints_nothing_on_standard_output():
    """Standard output may be a user's JSON; HiGHS prints on it, from C."""
    import subprocess
    import sys

    code = (
        "import random\n"
        "from hasten.levers.assignment import solve\n"
        "draw = random.Random(0)\n"
        "for _ in range(40):\n"
        "    groups = [{'name': str(g), 'loss': {'fp32': 0.0, 'int8': draw.random()},\n"
        "               'time_us': {'fp32': 1.0, 'int8': draw.random()}} for g in range(60)]\n"
        "    solve({'groups': groups}, 30 * draw.random())\n"
        "print('done')\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "done\n"
