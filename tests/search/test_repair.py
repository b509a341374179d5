"""A recipe that keeps the fragile operators and loses too much all the same is followed by one that keeps more."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from search_case import FakeLab, StepLever, Truth, levers, search, study

from hasten.lab.store import Store
from hasten.levers import Case, Need, Prediction, Proposal
from hasten.recipe import Recipe, Step

LAYERS = ["conv1", "conv2", "conv3", "conv4"]
TABLE = {"fragile": LAYERS}


class Keeping(StepLever):
    """INT8 but for as many of the fragile layers as the trials so far have shown to be needed, and one at least."""

    def propose(self, case: Case) -> Iterable[Proposal]:
        if case.recipe.has("int8") or case.sensitivity is None:
            return
        lost = [
            len(step.options.get("keep", []))
            for trial in case.trials
            if trial.reason.startswith("quality")
            for step in trial.recipe.steps
            if step.lever == "int8"
        ]
        keep = LAYERS[: max(lost, default=0) + 1]
        recipe = case.recipe.with_step(Step("int8", {"keep": keep}))
        yield Proposal(recipe, Prediction(2.0, "table"), f"keep {len(keep)}", self.name)


def truth(recipe: Recipe) -> Truth:
    """INT8 is twice as fast; each layer that is kept costs a tenth, and only three of them kept hold the quality."""
    step = next((step for step in recipe.steps if step.lever == "int8"), None)
    if step is None:
        return Truth()
    kept = len(step.options.get("keep", []))
    return Truth(2.0 - 0.1 * kept, 0.5 if kept >= 3 else 5.0 - kept)


def given():
    return {name: lever for name, lever in levers().items() if name == "int8"} | {
        "sensitivity": Keeping("sensitivity", needs=frozenset({Need.SENSITIVITY}))
    }


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store.db")


def kept(trials):
    return [len(s.options.get("keep", [])) for t in trials for s in t.recipe.steps if t.speedup is not None]


def test_a_choice_that_lost_too_much_is_repaired_until_it_holds(store):
    measured = []
    running, _ = search(
        store,
        lab=FakeLab(study().goal, truth),
        given=given(),
        sensitivity=lambda case: measured.append(case.recipe) or TABLE,
    )
    found = running.run()
    assert kept(found.trials) == [0, 1, 2, 3]
    assert found.best.recipe.steps == (Step("int8", {"keep": LAYERS[:3]}),)
    assert len(measured) == 1


def test_a_resumed_study_goes_on_repairing_where_it_was(store):
    class Stopped(Exception):
        pass

    def stop_at(recipe: Recipe) -> Truth:
        if kept_in(recipe) == 2:
            raise Stopped
        return truth(recipe)

    def kept_in(recipe: Recipe) -> int:
        return max((len(step.options.get("keep", [])) for step in recipe.steps), default=0)

    running, _ = search(store, lab=FakeLab(study().goal, stop_at), given=given(), sensitivity=lambda case: TABLE)
    with pytest.raises(Stopped):
        running.run()
    again, lab = search(store, lab=FakeLab(study().goal, truth), given=given(), sensitivity=lambda case: {})
    found = again.run()
    assert found.best.recipe.steps == (Step("int8", {"keep": LAYERS[:3]}),)
    assert len(lab.screened) == 2, "what was tried before is not tried again"
