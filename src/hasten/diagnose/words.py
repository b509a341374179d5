"""Says a profile in plain sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hasten.diagnose.roofline import roofs

if TYPE_CHECKING:
    from hasten.diagnose.profile import Profile

MEANING = {
    "compute": "compute-bound: arithmetic sets the floor of the operators that take most of the time",
    "memory": "memory-bound: moving data sets the floor of the operators that take most of the time",
    "overhead": "overhead-bound: most of the time goes to starting operators and to the runtime between them",
    "io": "I/O-bound: most of the time goes to preparing inputs and cutting outputs, not to the model",
}
WORTH_SAYING = 1.05
WEAK_SHARE, WEAK_FRACTION = 0.05, 0.3


def sentences(profile: Profile, tries: Sequence[tuple[str, float, str]] = ()) -> tuple[str, ...]:
    """What takes the time, what bounds it, what is weak, what is possible, and what to try."""
    said = [_time(profile), _bound(profile)]
    said += filter(None, (_kinds(profile), _weak(profile), _best(profile)))
    for number, (lever, factor, why) in enumerate(tries, 1):
        said.append(f"Try {'first' if number == 1 else 'next'}: {lever}, predicted {factor:.2g}x. {why}".rstrip())
    said += profile.notes
    return tuple(said)


def milliseconds(us: float) -> str:
    """A time with three digits and the unit that suits it."""
    if us < 1000:
        return f"{us:.3g} us"
    return f"{us / 1e3:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"


def _time(profile: Profile) -> str:
    inside = sum(row.share for row in profile.rows)
    io = profile.shares.get("io", 0.0)
    between = max(0.0, 1 - inside - io)
    batch = f"1 {profile.what}" if profile.batch == 1 else f"{profile.batch} {profile.what}s"
    return (
        f"A run of {batch} takes {milliseconds(profile.wall_us.value)}: {inside:.0%} inside operators, "
        f"{between:.0%} in the runtime between them, {io:.0%} preparing inputs and outputs."
    )


def _bound(profile: Profile) -> str:
    shares = ", ".join(
        f"{name} {share:.0%}" for name, share in sorted(profile.shares.items(), key=lambda s: -s[1]) if share >= 0.005
    )
    if profile.shares.get("unknown", 0.0) > 0.5:
        return f"What bounds it is not known: most of the time is in operators whose arithmetic is not ({shares})."
    return f"It is {MEANING[profile.bound]} ({shares})."


def _kinds(profile: Profile) -> str:
    top = [(kind, share) for kind, share in profile.kinds().items() if kind not in ("overhead", "io")][:3]
    return "Most of it: " + ", ".join(f"{kind} {share:.0%}" for kind, share in top) + "." if top else ""


def _weak(profile: Profile) -> str:
    """The operator that loses the most time against its roof."""
    known = [row for row in profile.rows if row.fraction is not None and row.share >= WEAK_SHARE]
    weak = [row for row in known if row.fraction is not None and row.fraction < WEAK_FRACTION]
    if not weak:
        return ""
    worst = max(weak, key=lambda row: row.microseconds * (1 - (row.fraction or 0)))
    return (
        f"The weakest: {worst.name} ({worst.kind}, {worst.share:.0%} of the time) reaches {worst.fraction:.0%} of what "
        f"this device can do in {worst.precision}."
    )


def _best(profile: Profile) -> str:
    if not profile.best_us:
        return ""
    listed = ", ".join(
        f"{milliseconds(figure.value)} in {precision} ({profile.wall_us.value / figure.value:.1f}x)"
        for precision, figure in profile.best_us.items()
        if figure.value > 0 and profile.wall_us.value > WORTH_SAYING * figure.value
    )
    if not listed:
        return "This run is at the limits of the device already (estimated: roofline)."
    limits = roofs(profile.device, profile.device_share)
    cores = "" if profile.device_share == 1 else f" with {profile.device_share:.0%} of its cores"
    missing = [name for name in ("bf16", "int8") if name not in limits.gflops]
    lacking = f"; no {' or '.join(missing)} rate could be measured" if missing else ""
    return f"At its limits this device{cores} would take {listed} (estimated: roofline{lacking})."
