"""How much CO2e a joule means: grid intensity by country and the data centre's overhead."""

from __future__ import annotations

from hasten.costs.price import MILLION
from hasten.costs.scale import origin, scaled, value_of
from hasten.costs.tables import table
from hasten.errors import InvalidInput
from hasten.measurement import Figure

JOULES_PER_KWH = 3.6e6
PUE = 1.0
"""Power usage effectiveness by default: the building's overhead is left out unless the user gives one."""


def grid_intensity(country: str | None = None) -> Figure:
    """Grams of CO2e per kWh of the grid of `country` (ISO 3166 code of two or three letters, or its English name).

    None means the world average, and the source says so. Location-based, without a provider's certificates.
    """
    key = ("WORLD" if country is None else country).strip().casefold()
    for row in table("carbon"):
        if key and key in (row["alpha3"].casefold(), row["alpha2"].casefold(), row["name"].casefold()):
            said = "world average, because no country was given" if country is None else row["name"]
            return Figure(float(row["g_per_kwh"]), "g/kWh", f"published: {said}, {row['date']} ({row['source']})")
    raise InvalidInput(
        f"no grid intensity is known for the country {country!r}",
        "give an ISO 3166 code such as DE or DEU, or leave it out for the world average",
    )


def co2e_g_per_million(joules: Figure | float, g_per_kwh: Figure | float, pue: float = PUE) -> Figure:
    """Grams of CO2e per million inferences of `joules` each: joules x 1e6 / 3.6e6 x g/kWh x PUE.

    Use only: the making of the device is not in it.
    """
    if pue < 1:
        raise InvalidInput(f"a PUE of {pue:g} is below 1", "give the building's energy over the computers' energy")
    energy = origin(joules, "energy as given")
    grid = origin(g_per_kwh, "grid intensity as given")
    return scaled(
        joules,
        MILLION / JOULES_PER_KWH * value_of(g_per_kwh) * pue,
        "g",
        f"estimated: energy x grid intensity x PUE {pue:g} (energy {energy}; grid {grid})",
    )
