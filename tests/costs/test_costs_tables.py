import pytest

from hasten.costs.carbon import grid_intensity
from hasten.costs.power import processors
from hasten.costs.price import price_of_instance
from hasten.costs.tables import TABLES, table


@pytest.mark.parametrize("name", TABLES)
def test_every_row_names_its_source_and_its_date(name: str) -> None:
    rows = table(name)
    assert rows
    for row in rows:
        assert row["source"].strip(), row
        assert 2009 <= int(row["date"][:4]) <= 2100, row
        assert None not in row, f"a comma too many in {row}"
        assert all(value is not None for value in row.values()), f"a cell is missing in {row}"


@pytest.mark.parametrize(("name", "key"), [("power", "name"), ("prices", "instance"), ("carbon", "alpha3")])
def test_nothing_is_listed_twice(name: str, key: str) -> None:
    values = [row[key].casefold() for row in table(name)]
    assert len(values) == len(set(values))


def test_powers_and_prices_are_plausible() -> None:
    for row in processors():
        assert 1 <= row.watts_per_core <= 40, row
        assert 2 <= row.cores <= 256, row
    for row in table("prices"):
        assert 0.01 <= float(row["usd_per_hour"]) / int(row["vcpus"]) <= 0.2, row
        assert price_of_instance(row["instance"]).source.startswith("published: ")


def test_every_country_has_a_plausible_grid() -> None:
    for row in table("carbon"):
        assert 0 <= grid_intensity(row["alpha3"]).value <= 1500, row
        if row["alpha2"]:
            assert grid_intensity(row["alpha2"]) == grid_intensity(row["alpha3"])


def test_every_instance_priced_has_a_processor_whose_power_is_known() -> None:
    names = {row.name for row in processors()}
    missing = {row["cpu"] for row in table("prices")} - names
    assert not missing
