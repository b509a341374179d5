"""What the cells of a table say."""

from __future__ import annotations

from dataclasses import replace

from hasten.cli import cells
from hasten.measurement import Figure


def test_a_quality_taken_on_other_samples_is_moved_to_those_of_the_baseline(study):
    brought, full, chosen, *_ = study.trials
    measured = chosen.measurement.quality
    whole = replace(measured, value=Figure(0.93, "", "measured"), beside=0.93, samples=900)
    baseline = replace(brought, measurement=replace(brought.measurement, quality=whole))

    def judged(value: float, beside: float) -> object:
        quality = replace(measured, value=Figure(value, "", "measured"), beside=beside)
        return replace(full, measurement=replace(full.measurement, quality=quality))

    assert cells.quality(judged(0.925, 0.93), baseline) == "92.50%"
    assert cells.quality(judged(0.60, 0.61), baseline) == "~92.00%"
    assert cells.quality(judged(0.60, 0.61), None) == "60.00%"
    assert cells.quality(replace(full, measurement=replace(full.measurement, quality=None)), baseline) == "–"
