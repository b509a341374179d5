import random
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from hasten.device import Device
from hasten.goal import Goal
from hasten.measurement import Figure, Measurement, Quality, Trial
from hasten.model import Facts, Model, Signature
from hasten.recipe import Recipe, Step
from hasten.study import Study
from hasten.view import table, theme
from hasten.view.axis import LogAxis
from hasten.view.latency import density, latency_svg, percentiles
from hasten.view.pareto import pareto_svg, spots
from hasten.view.roofline import roofline_svg
from hasten.workload import Samples, Workload

DEVICE = Device(
    "Test CPU",
    cpus=(0, 1),
    limits={
        "gemm_fp32_gflops": Figure(100.0, "GFLOP/s", "measured"),
        "gemm_bf16_gflops": Figure(105.0, "GFLOP/s", "measured"),
        "gemm_int8_gops": Figure(400.0, "GOP/s", "measured"),
        "read_gb_s": Figure(10.0, "GB/s", "measured"),
    },
)


def row(name: str, intensity: float | None, gflops: float | None, share: float = 0.2) -> dict:
    return {
        "name": name, "kind": "Conv", "intensity": intensity, "gflops": gflops, "gb_s": 1.0, "share": share,
        "by": "compute", "microseconds": 12.0, "fraction": 0.5, "precision": "fp32", "flops": 100, "executed": "jit",
    }  # fmt: skip


PROFILE = {
    "device": DEVICE.to_json(),
    "device_share": 1.0,
    "rows": [row("<conv & co>", 50.0, 80.0), row("relu", 0.2, 1.0), row("reorder", None, None)],
}


def trial(name: str, speedup: float, drop: float, status: str = "ok", origin: str = "search") -> Trial:
    quality = Quality("accuracy", Figure(0.9, "", "measured"), Figure(drop, "pt", "measured"), "labels", 100)
    figures = {"throughput_per_s": Figure(10 * speedup, "1/s", "measured")}
    recipe = Recipe((Step(name),)) if origin == "search" else Recipe()
    return Trial(
        name, recipe, status, "because", Measurement(figures, quality),
        Figure(speedup, "x", "measured", (speedup * 0.9, speedup * 1.1)), origin=origin,
    )  # type: ignore[arg-type]  # fmt: skip


MODEL = Model(Path("net.onnx"), "onnx", "0" * 64, Signature((), ()), Facts(1, 1))
STUDY = Study(
    Workload(MODEL, Samples(Path("d"), "1" * 64, 100, (), "data", True), "accuracy", "offline"),
    Goal.parse("throughput", "0.5pt"),
    DEVICE,
    trials=(
        trial("brought", 1.0, 0.0, origin="brought"),
        trial("winner", 4.0, 0.2),
        trial("broken", 5.0, 30.0, "rejected"),
        Trial("dead", Recipe((Step("x"),)), "failed", "killed"),
    ),
    pareto=("brought", "winner"),
    best_id="winner",
)


def draw(kind: str, **options) -> str:
    if kind == "roofline":
        return roofline_svg(PROFILE, **options)
    if kind == "overlay":
        return roofline_svg(PROFILE, PROFILE | {"rows": [row("old", 40.0, 20.0)]}, **options)
    if kind == "pareto":
        return pareto_svg(STUDY, **options)
    return latency_svg({"brought": [3.0, 3.1, 3.2], "chosen": [1.0, 1.1, 9.0]}, **options)


@pytest.mark.parametrize("kind", ["roofline", "overlay", "pareto", "latency"])
def test_a_plot_is_an_svg_that_takes_the_pages_colour_and_asks_for_nothing(kind):
    drawn = draw(kind, key="k")
    ElementTree.fromstring(drawn)
    assert "currentColor" in drawn
    assert "#010203" not in drawn
    assert "#fdfcfb" not in drawn
    links = set(re.findall(r'(?:href|src)="([^"]+)"', drawn)) | set(re.findall(r"url\(([^)]+)\)", drawn))
    assert all(link.startswith("#k-") for link in links)
    assert all(name.startswith("k-") for name in re.findall(r'\bid="([^"]+)"', drawn))
    assert 'role="img" aria-label="' in drawn


def test_a_dark_picture_has_its_own_background():
    drawn = draw("roofline", style=theme.DARK)
    assert theme.DARK.ink in drawn
    assert "currentColor" not in drawn
    assert f"background:{theme.DARK.background}" in drawn


def test_operators_have_tooltips_and_roofs_have_names():
    drawn = draw("roofline")
    assert "<title>&lt;conv &amp; co&gt; (Conv)" in drawn
    text = "".join(ElementTree.fromstring(drawn).itertext())
    assert "fp32, bf16" in text
    assert "int8" in text
    assert "memory" in text


def test_a_profile_without_limits_or_operators_is_still_drawn():
    empty = {"device": Device("x").to_json(), "device_share": 1.0, "rows": []}
    ElementTree.fromstring(roofline_svg(empty))
    ElementTree.fromstring(roofline_svg(empty | {"rows": [row("conv", 1.0, 1.0)]}))


def test_a_broken_variant_is_held_at_the_edge_and_says_its_loss():
    held = [spot for spot in spots(STUDY) if spot.held]
    assert [spot.label for spot in held] == ["30.0 lost"]
    assert "30.0 lost" in draw("pareto")
    assert "0.5pt may be lost" in draw("pareto")


def test_a_study_in_which_nothing_was_measured_is_still_drawn():
    ElementTree.fromstring(pareto_svg(Study(STUDY.workload, STUDY.goal, DEVICE)))


def test_a_percentile_is_shown_only_when_ten_samples_lie_above():
    assert [name for name, _ in percentiles(sorted(map(float, range(1, 51))))] == ["p50"]
    found = dict(percentiles(sorted(map(float, range(1, 1001)))))
    assert found == {"p50": 500.0, "p90": 900.0, "p99": 990.0}


def test_a_density_peaks_where_the_samples_are():
    rng = random.Random(1)
    values = sorted(rng.lognormvariate(1.0, 0.1) for _ in range(500))
    shape = density(values, LogAxis.around(values, 600))
    peak = max(shape, key=lambda point: point[1])
    assert peak[1] == 1.0
    assert 2.4 < peak[0] < 3.0


def text_of(given) -> str:
    from rich.console import Console

    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(given)
    return console.export_text()


def test_tables_carry_every_row_and_no_markup_from_outside():
    assert "★" in text_of(table.trials(STUDY))
    assert "killed" in text_of(table.trials(STUDY))
    assert "105 GFLOP/s" in text_of(table.device(DEVICE))
    said = text_of(table.operators([row("[red]conv[/red]", 1.0, 2.0) for _ in range(5)], most=3))
    assert said.count("[red]conv[/red]") == 3
    assert "2 more" in said
    assert "accuracy" in text_of(table.measurement(STUDY.trials[1].measurement))
    runtime = {"name": "x", "version": "", "accepts": ["onnx"], "precisions": [], "usable": False, "reason": "why",
               "command": "pip install x"}  # fmt: skip
    assert "why · pip install x" in text_of(table.runtimes([runtime]))
