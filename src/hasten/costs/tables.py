"""Reads the small dated tables that ship with hasten."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

TABLES = ("power", "prices", "carbon")


@cache
def table(name: str) -> tuple[Mapping[str, str], ...]:
    """The rows of `data/NAME.csv`; every row has a `source` and a `date`."""
    text = files("hasten.costs").joinpath("data", f"{name}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))
