"""What the search could try next, in which order, and how well its predictions have held."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from hasten.levers import Proposal
from hasten.recipe import SECTIONS, Recipe

BASELINE, STRUCTURE, SETTINGS, LATER = range(4)


@dataclass(order=True)
class Candidate:
    """A queued proposal: honest baselines first, then structures, settings, and structures put off or late.

    Within each of these the best predicted speed-up comes first. `base` is the parent's measured one.
    """

    phase: int
    rank: float
    number: int
    proposal: Proposal = field(compare=False)
    base: float = field(compare=False)
    change: str = field(compare=False)

    @property
    def put_off(self) -> bool:
        """Whether it is a structure that waits for what could be joined to it; one that is late waits for nothing."""
        return self.phase == LATER and not self.proposal.late

    @property
    def builds(self) -> bool:
        """Whether a variant must be built for it, which takes longer than all else."""
        return self.phase in (STRUCTURE, LATER) and bool(self.proposal.recipe.steps)


@dataclass
class Bias:
    """How one change turns out: the geometric mean of found over predicted gain, with one pseudo-observation of 1."""

    logs: list[float] = field(default_factory=list)

    @property
    def factor(self) -> float:
        return math.exp(sum(self.logs) / (len(self.logs) + 1))

    def learn(self, predicted: float, found: float) -> None:
        self.logs.append(math.log(max(found, 1e-3) / max(predicted, 1e-3)))


def structure(recipe: Recipe) -> str:
    """What a recipe is made of, whatever its settings: the steps, the runtime, its device and its precision."""
    return Recipe(recipe.steps, {key: recipe.runtime.get(key) for key in ("name", "device", "precision")}).id


def difference(parent: Recipe, child: Recipe) -> str:
    """What changed from one recipe to the next, so that the same change elsewhere is recognised."""
    changed: dict[str, Any] = {"steps": [step.to_json() for step in child.steps[len(parent.steps) :]]}
    if changed["steps"] or child.runtime.get("name") != parent.runtime.get("name"):
        changed["runtime"] = child.runtime.get("name")
    for section in SECTIONS:
        before, after = getattr(parent, section), getattr(child, section)
        changed[section + " keys"] = {k: after.get(k) for k in {*before, *after} if before.get(k) != after.get(k)}
    return json.dumps(changed, sort_keys=True)


def heard_no_longer(recipe: Recipe, lost: Recipe) -> bool:
    """Whether a recipe of a speech model hears as little beyond a clip as the one that lost, or less."""
    return "margin_s" in recipe.runner and float(recipe.runner["margin_s"]) <= float(lost.runner["margin_s"])


def similar(recipe: Recipe) -> bool:
    """Whether inputs may get the answers of similar ones."""
    return recipe.cache.get("kind") == "semantic"


def loses_as(recipe: Recipe, lost: Recipe) -> bool:
    """Whether a recipe does to the outputs all that one did which lost too much quality, on the same runtime."""
    if any(recipe.runtime.get(key) != lost.runtime.get(key) for key in ("name", "device")):
        return False
    if lost.runner.get("form") not in (None, recipe.runner.get("form")):
        return False
    if "margin_s" in lost.runner and not heard_no_longer(recipe, lost):
        return False
    if similar(lost) and (not similar(recipe) or recipe.cache["distance"] < lost.cache["distance"]):
        return False
    precision = lost.runtime.get("precision")
    if lost.steps and precision == "fp32":
        return all(step in recipe.steps for step in lost.steps)
    if recipe.runtime.get("precision") != precision:
        return False
    return all(step in recipe.steps for step in lost.steps) if lost.steps else not recipe.steps
