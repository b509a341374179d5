"""The loop: what it chooses, what it says of everything else, and what it does when its time is up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search_case import BEST, BROUGHT, FakeLab, StepLever, Truth, levers, search, space, study, truth

from hasten.errors import Failed
from hasten.events import Event
from hasten.goal import Goal
from hasten.lab.store import Store
from hasten.lab.trial import quality_key
from hasten.levers import Need, Prediction, Proposal
from hasten.levers.base import SettingsLever
from hasten.recipe import Recipe


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store.db")


def test_it_finds_what_an_exhaustive_search_finds(store):
    allowed = [recipe for recipe in space() if truth(recipe).drop <= 1.0]
    assert max(allowed, key=lambda recipe: truth(recipe).speed) == BEST
    running, lab = search(store)
    found = running.run()
    assert found.best.recipe == BEST
    assert found.best.final
    assert found.best.status == "ok"
    assert len(lab.screened) < len(space()) / 3
    assert found.why.startswith("4.54x better throughput than the model as brought (95% interval 4.45 to 4.63)")


def test_the_stored_study_is_the_returned_one(store):
    running, _ = search(store)
    found = running.run()
    kept = store.study(found.key)
    assert (kept.best_id, kept.why, kept.pareto, kept.notes) == (found.best_id, found.why, found.pareto, found.notes)
    assert {t.id: t for t in kept.trials} == {t.id: t for t in found.trials}


def test_every_trial_but_the_chosen_one_has_a_reason(store):
    running, _ = search(store)
    found = running.run()
    silent = [t.recipe.describe() for t in found.trials if not t.reason and t.id != found.best_id]
    assert silent == []
    assert len({t.id for t in found.trials}) == len(found.trials)
    assert found.best_id in found.pareto


def test_both_honest_baselines_are_measured_and_confirmed_beside_the_winner(store):
    running, _ = search(store)
    found = running.run()
    origins = {t.origin: t for t in found.trials if t.origin != "search"}
    assert set(origins) == {"brought", "full-precision"}
    assert origins["full-precision"].recipe.runtime == {"name": "quick", "precision": "fp32"}
    assert all(t.final for t in origins.values())


def test_the_model_as_brought_is_the_answer_when_nothing_wins(store):
    goal = study().goal
    lab = FakeLab(goal, lambda recipe: Truth(1.0 if recipe == BROUGHT else 0.7))
    running, _ = search(store, lab=lab)
    found = running.run()
    assert found.best.recipe == BROUGHT
    assert "nothing that was tried is faster" in found.why
    tried = [t for t in found.trials if t.recipe != BROUGHT]
    assert tried
    assert all(t.status == "rejected" and t.reason for t in tried)
    assert lab.asked == []
    assert lab.raced == []


class LateEngine(SettingsLever):
    """A runtime that seldom wins, proposed from every recipe."""

    name = "late engine"

    def propose(self, case):
        if case.recipe.runtime.get("name") != "late":
            recipe = case.recipe.edit("runtime", name="late", precision=None)
            yield Proposal(recipe, Prediction(0.6, "prior"), "execute on late", self.name, late=True)


def _late(recipe: Recipe) -> Truth:
    """0.3x on the late runtime, of what the same recipe reaches elsewhere."""
    if recipe.runtime.get("name") != "late":
        return truth(recipe)
    return Truth(0.3 * truth(recipe.edit("runtime", name="plain")).speed)


def test_what_seldom_wins_is_tried_once_all_else_was_and_is_not_built_upon(store):
    running, lab = search(store, lab=FakeLab(study().goal, _late), given=levers(LateEngine()))
    found = running.run()
    assert found.best.recipe == BEST
    on_late = {t.id: t for t in found.trials if t.recipe.runtime.get("name") == "late"}
    tried = [number for number, id_ in enumerate(lab.screened) if id_ in on_late]
    assert 1 <= len(tried) <= 2
    assert min(tried) >= len(lab.screened) - len(tried)
    assert all(t.reason for t in on_late.values())


def test_what_seldom_wins_is_the_answer_where_it_does(store):
    def surprising(recipe: Recipe) -> Truth:
        return Truth(9.0) if recipe.runtime.get("name") == "late" else truth(recipe)

    running, _ = search(store, lab=FakeLab(study().goal, surprising), given=levers(LateEngine()))
    assert running.run().best.recipe.runtime["name"] == "late"


def test_a_winner_whose_quality_does_not_hold_gives_way_to_the_next(store):
    def tempting(recipe: Recipe) -> Truth:
        found = truth(recipe)
        return replace(found, confirmed_drop=5.0) if recipe.has("int8") else found

    running, lab = search(store, lab=FakeLab(study().goal, tempting))
    found = running.run()
    assert found.best.recipe == replace(BEST, steps=())
    assert lab.asked[0] == BEST.id
    lost = found.trial(BEST.id)
    assert (lost.status, lost.reason, lost.final) == ("rejected", "quality: 5 points lost", True)


def test_variants_that_share_the_outputs_of_one_that_lost_quality_are_not_confirmed(store):
    def tempting(recipe: Recipe) -> Truth:
        found = truth(recipe)
        return replace(found, confirmed_drop=5.0) if recipe.has("int8") else found

    running, lab = search(store, lab=FakeLab(study().goal, tempting))
    running.run()
    outputs = [quality_key(running.trials[name].recipe) for name in lab.asked]
    assert len(outputs) > 1
    assert len(set(outputs)) == len(outputs)


def test_full_precision_that_held_beside_a_loser_is_the_answer_where_nothing_better_holds(store):
    def tempting(recipe: Recipe) -> Truth:
        found = truth(recipe)
        plain = recipe == Recipe((), {"name": "quick", "precision": "fp32"}, {"batch": 8})
        return found if plain or recipe == BROUGHT else replace(found, confirmed_speed=1.0)

    running, lab = search(store, goal=Goal.parse("throughput", "1pt", (), 90.0), lab=FakeLab(study().goal, tempting))
    found = running.run()
    assert found.best.origin == "full-precision"
    assert found.best.id not in lab.asked, "it was judged beside a loser, and needs no confirmation of its own"
    assert found.why.startswith("1.50x")


def test_the_operators_to_blame_are_sought_once_nothing_quicker_is_left_to_screen(store):
    order = []
    goal = study().goal

    class Told(FakeLab):
        def screen(self, recipe, origin="search", why=""):
            order.append(recipe)
            return super().screen(recipe, origin, why)

    def fragile(recipe: Recipe) -> Truth:
        known = truth(recipe)
        return replace(known, speed=1.2, drop=5.0) if recipe.has("int8") else known

    given = {name: lever for name, lever in levers().items() if name != "prune"}
    running, _ = search(store, lab=Told(goal, fragile), given=given, sensitivity=lambda case: order.append("blame"))
    running.run()
    lost = next(i for i, recipe in enumerate(order) if recipe != "blame" and recipe.has("int8"))
    bf16 = next(i for i, recipe in enumerate(order) if recipe != "blame" and recipe.runtime.get("precision") == "bf16")
    assert lost < bf16 < order.index("blame")


def test_a_speed_up_that_is_not_shown_again_is_not_chosen(store):
    lab = FakeLab(study().goal, lambda recipe: replace(truth(recipe), confirmed_speed=1.0))
    running, _ = search(store, lab=lab)
    found = running.run()
    assert found.best.recipe == BROUGHT
    assert "no variant held when it was confirmed" in found.why
    assert found.trial(lab.asked[0]).status == "undecided"


def test_a_bound_rules_out_what_misses_it(store):
    def slow_tail(recipe: Recipe) -> Truth:
        found = truth(recipe)
        return replace(found, p99_ms=50.0) if recipe.has("int8") else found

    goal = Goal.parse("throughput", "1pt", ("p99<20ms",), 600.0)
    running, _ = search(store, goal, lab=FakeLab(goal, slow_tail))
    found = running.run()
    assert found.best.recipe == replace(BEST, steps=())
    missed = [t for t in found.trials if t.recipe.has("int8") and t.speedup is not None and t.speedup.value > 1.0]
    assert missed
    assert {t.status for t in missed} == {"rejected"}
    assert {t.reason for t in missed} == {"misses p99<20ms"}


def test_a_failed_trial_is_a_row_with_its_reason_and_the_study_goes_on(store):
    def fragile(recipe: Recipe) -> Truth:
        found = truth(recipe)
        return replace(found, fails="killed by signal 11 (segmentation fault)") if recipe.has("int8") else found

    running, _ = search(store, lab=FakeLab(study().goal, fragile))
    found = running.run()
    failed = [t for t in found.trials if t.status == "failed"]
    assert failed
    assert all(t.reason == "killed by signal 11 (segmentation fault)" for t in failed)
    assert found.best.recipe == replace(BEST, steps=())


def test_a_lever_that_throws_is_noted_and_the_others_go_on(store):
    class Broken(StepLever):
        def propose(self, case):
            raise ZeroDivisionError("a stranger's mistake")

    running, _ = search(store, given=levers(Broken("broken")))
    found = running.run()
    assert found.best.recipe == BEST
    assert "lever broken failed to propose: ZeroDivisionError: a stranger's mistake" in found.notes


def test_a_profile_that_fails_is_noted_and_the_search_goes_on_without_it(store):
    class Blind(FakeLab):
        def operators(self, recipe):
            raise Failed("no operator times here")

    running, _ = search(store, lab=Blind(study().goal))
    found = running.run()
    assert found.best.recipe == BEST
    assert any(note.endswith("no operator times here") for note in found.notes)


def test_a_race_that_fails_leaves_the_screened_speed_ups_to_decide(store):
    class NoRace(FakeLab):
        def race(self, recipes, budget_s):
            raise Failed("the baseline's worker died")

    running, _ = search(store, lab=NoRace(study().goal))
    found = running.run()
    assert found.best.recipe == BEST
    assert any("the final race failed" in note for note in found.notes)


def test_a_finalist_that_dies_in_the_race_is_a_failed_trial(store):
    class Fatal(FakeLab):
        def race(self, recipes, budget_s):
            return {name: figure for name, figure in super().race(recipes, budget_s).items() if name != BEST.id}

    running, _ = search(store, lab=Fatal(study().goal))
    found = running.run()
    assert found.best.recipe not in (BEST, BROUGHT)
    assert found.trial(BEST.id).status == "failed"
    assert found.trial(BEST.id).reason == "failed in the final race"


def test_a_winner_that_dies_while_it_is_confirmed_is_a_failed_trial_here_and_in_the_store(store):
    class Fatal(FakeLab):
        def confirm(self, trial, beside, budget_s):
            if trial.id == BEST.id:
                raise Failed("out of memory")
            return super().confirm(trial, beside, budget_s)

    running, _ = search(store, lab=Fatal(study().goal))
    found = running.run()
    assert found.best.recipe not in (BEST, BROUGHT)
    assert [found.trial(BEST.id).status, store.study(found.key).trial(BEST.id).status] == ["failed", "failed"]


def test_a_loss_of_quality_has_the_sensitivity_measured_once_for_each_runtime_and_used(store):
    measured = []

    class Careful(StepLever):
        def propose(self, case):
            recipe = case.recipe.with_step(self_step) if not case.recipe.steps else None
            if recipe is not None and case.sensitivity is not None:
                assert case.sensitivity == {"fragile": ["conv1"]}
                yield Proposal(recipe, Prediction(2.0, "table"), "keep what is fragile", self.name)

    from hasten.recipe import Step

    self_step = Step("int8", {"keep": ["conv1"]})
    given = levers(Careful("careful", needs=frozenset({Need.SENSITIVITY})))
    running, _ = search(
        store, given=given, sensitivity=lambda case: measured.append(case.recipe) or {"fragile": ["conv1"]}
    )
    found = running.run()
    names = [recipe.runtime["name"] for recipe in measured]
    assert sorted(names) == sorted(set(names)) != []
    assert any(step.options for t in found.trials for step in t.recipe.steps)
    again, _ = search(store, given=given, sensitivity=lambda case: measured.append(case.recipe) or {})
    again.run()
    assert len(measured) == len(names), "a resumed study measures no sensitivity again"


@pytest.mark.parametrize("budget", [30.0, 60.0, 120.0, 300.0, 900.0])
@pytest.mark.parametrize("seconds", [1.0, 5.0, 12.0])
def test_the_budget_is_honoured_within_fifteen_per_cent(store, budget, seconds):
    goal = Goal.parse("throughput", "1pt", (), budget)
    lab = FakeLab(goal, lambda recipe: replace(truth(recipe), seconds=seconds), narrow_s=float("inf"))
    before = lab.now
    running, _ = search(store, goal, lab=lab)
    found = running.run()
    assert lab.now - before <= 1.15 * budget
    assert found.best is not None


def test_what_the_budget_left_untried_says_so(store):
    goal = Goal.parse("throughput", "1pt", (), 40.0)
    running, _ = search(store, goal)
    found = running.run()
    untried = [t for t in found.trials if t.speedup is None and t.status == "rejected"]
    assert {t.reason for t in untried if "int8" in t.why} == {"not tried: the budget was spent"}


def test_a_trial_that_the_budget_cut_off_is_tried_again_with_a_larger_one(store):
    class Slow(FakeLab):
        """Building the INT8 variant takes 100 s, and the builder gives up when there is less than that."""

        def screen(self, recipe, origin="search", why=""):
            left = running.left()
            if recipe.has("int8") and left < 100.0:
                self.now += left
                self.screened.append(recipe.id)
                return replace(super().screen(BROUGHT), id=recipe.id, recipe=recipe, status="failed", reason="timeout")
            return super().screen(recipe, origin, why)

    goal = Goal.parse("throughput", "1pt", (), 90.0)
    running, lab = search(store, goal, lab=Slow(goal))
    first = running.run()
    assert lab.now - 1000.0 <= 1.15 * 90.0
    assert not any(t.status == "failed" for t in first.trials)
    goal = Goal.parse("throughput", "1pt", (), 2000.0)
    running, _ = search(store, goal, lab=Slow(goal))
    assert running.run().best.recipe == BEST


def test_a_larger_budget_goes_on_where_a_smaller_one_ended(store):
    small = Goal.parse("throughput", "1pt", (), 60.0)
    running, first = search(store, small)
    found = running.run()
    assert found.best.recipe != BEST
    running, second = search(store, replace(small, budget_s=900.0))
    final = running.run()
    assert final.best.recipe == BEST
    assert not set(first.screened) & set(second.screened)
    assert {t.id for t in found.trials if t.speedup} <= {t.id for t in final.trials if t.speedup}
    assert store.study(final.key).goal.budget_s == 900.0


def test_a_finished_study_is_answered_from_the_store_without_starting_the_lab(store):
    running, _ = search(store)
    found = running.run()
    calls: list[str] = []
    running, lab = search(store, lab=FakeLab(study().goal, step=calls.append))
    again = running.run()
    assert (again.best_id, again.why) == (found.best_id, found.why)
    assert calls == []
    assert lab.screened == []
    assert {t.id: t for t in again.trials if t.speedup} == {t.id: t for t in found.trials if t.speedup}


def test_the_answer_of_an_earlier_run_stands_until_there_is_a_new_one(store):
    small = Goal.parse("throughput", "1pt", (), 60.0)
    running, _ = search(store, small)
    found = running.run()

    class Dead(Exception):
        pass

    def die(name: str) -> None:
        raise Dead

    running, _ = search(store, replace(small, budget_s=900.0), lab=FakeLab(small, step=die))
    with pytest.raises(Dead):
        running.run()
    kept = store.study(found.key)
    assert (kept.best_id, kept.why, kept.pareto) == (found.best_id, found.why, found.pareto)
    assert kept.best is not None


def test_the_observer_hears_of_every_trial_and_of_the_end(store):
    heard: list[Event] = []
    running, lab = search(store, on_event=heard.append)
    found = running.run()
    told = [event.trial.id for event in heard if event.kind == "trial" and event.trial]
    assert set(lab.screened) <= set(told)
    assert heard[-1].kind == "done"
    assert heard[-1].trial.id == found.best_id
    shares = [event.fraction for event in heard if event.kind == "trial"]
    assert shares == sorted(shares)


def test_a_slow_build_does_not_keep_quick_settings_from_being_tried(store):
    def slow_builds(recipe: Recipe) -> Truth:
        found = truth(recipe)
        fresh = recipe.steps and "streams" not in recipe.runtime
        return replace(found, seconds=60.0 if fresh else 3.0)

    goal = Goal.parse("throughput", "1pt", (), 200.0)
    lab = FakeLab(goal, slow_builds)
    running, _ = search(store, goal, lab=lab)
    found = running.run()
    tuned = [t for t in found.trials if t.speedup is not None and "streams" in t.recipe.runtime]
    assert len(tuned) >= 4
    assert lab.now - 1000.0 <= 1.15 * 200.0
