"""The profiles of an answer: of the model as brought and of the winner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from search_case import BROUGHT, ONE
from search_case import study as plain_study

from hasten.events import ignore
from hasten.measurement import Trial
from hasten.recipe import Recipe
from hasten.search.optimize import with_profiles


class Profiling:
    """A lab that notes what it was asked to profile."""

    on_event = staticmethod(ignore)

    def __init__(self) -> None:
        self.asked: list[str] = []

    def profile(self, recipe: Recipe) -> dict[str, Any]:
        self.asked.append(recipe.id)
        return {"best_us": {}}


def test_the_model_as_brought_is_profiled_once_where_it_is_the_answer() -> None:
    brought = Trial(BROUGHT.id, BROUGHT, "ok", speedup=ONE, origin="brought")
    study = replace(plain_study(), trials=(brought,), best_id=brought.id)
    lab: Any = Profiling()
    assert set(with_profiles(study, lab).profiles) == {"before", "after"}
    assert lab.asked == [BROUGHT.id]
