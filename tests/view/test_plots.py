import re
import xml.etree.ElementTree as ElementTree

import pytest

from hasten.device import Device
from hasten.measurement import Figure
from hasten.view import theme
from hasten.view.roofline import roofline_svg

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


def draw(kind: str, **options) -> str:
    if kind == "roofline":
        return roofline_svg(PROFILE, **options)
    return roofline_svg(PROFILE, PROFILE | {"rows": [row("old", 40.0, 20.0)]}, **options)


@pytest.mark.parametrize("kind", ["roofline", "overlay"])
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
