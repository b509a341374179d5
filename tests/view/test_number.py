import math

from hypothesis import given
from hypothesis import strategies as st

from hasten.view.number import microseconds, percent, ratio, short, size


def test_three_digits_without_an_exponent():
    assert short(0.00123456) == "0.00123"
    assert short(12.345) == "12.3"
    assert short(9.999) == "10.0"
    assert short(123456) == "123,000"
    assert short(0) == "0"
    assert short(None) == short(math.nan) == "–"


def test_units_suit_the_value():
    assert microseconds(12.3) == "12.3 µs"
    assert microseconds(12300) == "12.3 ms"
    assert microseconds(12.3e6) == "12.3 s"
    assert size(24 << 30) == "24 GiB"
    assert size(512) == "512 B"
    assert ratio(3.456) == "3.46x"


def test_what_is_not_nothing_is_not_written_as_nothing():
    assert percent(0.001) == "<1%"
    assert percent(0.0) == "0%"


@given(st.floats(1e-6, 1e12))
def test_rounding_keeps_three_digits(value):
    assert abs(float(short(value).replace(",", "")) - value) <= 0.0051 * value + 1e-9
