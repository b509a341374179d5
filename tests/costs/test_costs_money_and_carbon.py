import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.costs.carbon import co2e_g_per_million, grid_intensity
from hasten.costs.price import cost_per_million, price_of_instance, price_per_hour
from hasten.errors import InvalidInput
from hasten.measurement import Figure


def test_a_million_inferences_of_3_6_ms_at_a_dollar_an_hour_cost_a_dollar() -> None:
    cost = cost_per_million(0.0036, 1.0)
    assert cost.value == pytest.approx(1.0)
    assert cost.unit == "USD"
    assert cost.source.startswith("estimated: ")


def test_a_million_joules_on_a_grid_of_360_g_emit_100_g() -> None:
    co2e = co2e_g_per_million(1.0, 360.0)
    assert co2e.value == pytest.approx(100.0)
    assert co2e.unit == "g"
    assert "PUE 1" in co2e.source


def test_the_interval_of_the_time_becomes_the_interval_of_the_cost() -> None:
    cost = cost_per_million(Figure(0.0036, "s", "measured", (0.0018, 0.0072)), 1.0)
    assert cost.ci95 == pytest.approx((0.5, 2.0))


@given(st.floats(1e-6, 1e3), st.floats(1, 1000), st.floats(1, 3))
def test_carbon_grows_with_the_grid_and_with_the_pue(joules: float, grid: float, pue: float) -> None:
    once = co2e_g_per_million(joules, grid).value
    assert co2e_g_per_million(joules, 2 * grid).value == pytest.approx(2 * once)
    assert co2e_g_per_million(joules, grid, pue).value == pytest.approx(pue * once)


def test_a_pue_below_one_is_refused() -> None:
    with pytest.raises(InvalidInput, match="below 1"):
        co2e_g_per_million(1.0, 100.0, 0.9)


def test_without_a_country_the_world_average_is_named() -> None:
    assert "world average, because no country was given" in grid_intensity().source


def test_a_country_goes_by_either_code_or_name_in_any_case() -> None:
    assert grid_intensity("de") == grid_intensity("DEU") == grid_intensity("germany")
    assert grid_intensity("FR").value < grid_intensity("PL").value
    assert grid_intensity("FR").source.startswith("published: France")


@pytest.mark.parametrize("country", ["XX", "", "Atlantis"])
def test_an_unknown_country_is_refused(country: str) -> None:
    with pytest.raises(InvalidInput, match="no grid intensity"):
        grid_intensity(country)


def test_the_users_price_is_for_the_whole_device_and_wins() -> None:
    price = price_per_hour("AMD EPYC 9R14", 64, given=0.5)
    assert price.value == 0.5
    assert "given by the user" in price.source


def test_a_listed_processor_has_the_price_of_its_instance() -> None:
    price = price_per_hour("AMD EPYC 9R14", 2)
    assert price.value == pytest.approx(0.2053 / 4 * 2)
    assert price.source.startswith("published: aws c7a.xlarge")


def test_an_unlisted_processor_has_a_median_price_and_says_so() -> None:
    assert price_per_hour("VIA Nano", 2).source.startswith("estimated: median on-demand price")


def test_a_negative_price_is_refused() -> None:
    with pytest.raises(InvalidInput, match="negative"):
        price_per_hour("AMD EPYC 9R14", 2, given=-1.0)


def test_an_unknown_instance_lists_those_that_are_known() -> None:
    with pytest.raises(InvalidInput) as caught:
        price_of_instance("z9.huge")
    assert "c7i.xlarge" in caught.value.fix
