"""What an hour of a device costs, and a million inferences with it."""

from __future__ import annotations

from statistics import median

from hasten.costs.power import plain_name
from hasten.costs.scale import origin, scaled, value_of
from hasten.costs.tables import table
from hasten.errors import InvalidInput
from hasten.measurement import Figure

SECONDS_PER_HOUR = 3600.0
MILLION = 1e6


def price_per_hour(processor: str, cpus: int, given: float | None = None) -> Figure:
    """US dollars for an hour of `cpus` logical CPUs.

    `given` is the user's own price for an hour of the whole device, and wins. Else the list price per vCPU-hour of the
    instances with this processor, or the median of all instances in the table where none has it, times `cpus`.
    """
    if given is not None:
        if given < 0:
            raise InvalidInput(f"a price of {given} an hour is negative", "give what an hour of the device costs")
        return Figure(given, "USD/h", "published: price per device-hour given by the user")
    if cpus <= 0:
        raise ValueError(f"cpus must be positive, not {cpus}")
    rows = table("prices")
    plain = plain_name(processor).casefold()
    same = [row for row in rows if row["cpu"].casefold() == plain]
    chosen = same or rows
    rates = sorted(float(row["usd_per_hour"]) / int(row["vcpus"]) for row in chosen)
    rate = median(rates)
    if same:
        row = min(same, key=lambda r: abs(float(r["usd_per_hour"]) / int(r["vcpus"]) - rate))
        source = f"published: {row['provider']} {row['instance']} on demand, {row['source']}, {row['date']}; "
    else:
        source = f"estimated: median on-demand price of {len(rows)} listed instances, because none has this processor; "
    return Figure(rate * cpus, "USD/h", source + f"{rate:.4f} USD per vCPU-hour x {cpus}")


def price_of_instance(instance: str) -> Figure:
    """The list price of an hour of an instance such as `aws c7i.xlarge` or `c7i.xlarge`."""
    name = instance.split()[-1].casefold()
    for row in table("prices"):
        if row["instance"].casefold() == name:
            source = f"published: {row['provider']} {row['instance']} on demand in {row['region']}, {row['source']}"
            return Figure(float(row["usd_per_hour"]), "USD/h", f"{source}, {row['date']}")
    known = ", ".join(row["instance"] for row in table("prices"))
    raise InvalidInput(f"no price is known for the instance {instance!r}", f"give a price, or one of: {known}")


def cost_per_million(seconds_per_inference: Figure | float, price_per_hour: Figure | float) -> Figure:
    """US dollars per million inferences when the device does nothing else and is never idle.

    `seconds_per_inference` is device time: one over the throughput. seconds x 1e6 / 3600 x USD/h.
    """
    return scaled(
        seconds_per_inference,
        MILLION / SECONDS_PER_HOUR * value_of(price_per_hour),
        "USD",
        f"estimated: device time x price, never idle ({origin(price_per_hour, 'price as given')})",
    )
