"""Which commands there are, in which module each lives, and the overview that `hasten --help` prints.

The overview is plain text: printing it imports neither typer nor rich, so that it answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """One command; its module has `command`, a function, or `app`, a group of functions."""

    name: str
    arguments: str
    help: str
    group: str

    @property
    def module(self) -> str:
        return f"hasten.cli.{self.name}"


COMMANDS = tuple(
    Command(*row)
    for row in (
        ("demo", "", "Make a real model faster, with its accuracy proved on labelled data; nothing to set up", "Start"),
        ("doctor", "", "This machine, its measured limits, and the runtimes and levers usable here", "Start"),
        ("profile", "MODEL", "Where the time goes, what bounds it, and what to try first", "Measure"),
        ("bench", "MODEL|BUNDLE", "Latency, throughput, memory, energy, cost and carbon in one scenario", "Measure"),
        ("compare", "A B", "Two models side by side: the ratio with its interval, and quality", "Measure"),
        ("optimize", "MODEL", "Try every lever that could help, reject what loses, ship the winner", "Improve"),
        ("build", "MODEL", "Apply a known recipe, verify it, ship it", "Improve"),
        ("study", "list|show|rm", "The studies in the store", "Look back"),
        ("report", "STUDY|BUNDLE", "One self-contained HTML page", "Look back"),
    )
)

BY_NAME = {command.name: command for command in COMMANDS}


def overview(bold: str = "", plain: str = "") -> str:
    """The text of `hasten --help`; `bold` and `plain` are the terminal's codes around headings."""
    lines = [
        "hasten makes machine-learning models faster, smaller and cheaper, and proves it.",
        "",
        f"{bold}Usage:{plain} hasten COMMAND [OPTIONS]",
    ]
    group = ""
    for command in COMMANDS:
        if command.group != group:
            group = command.group
            lines += ["", f"{bold}{group}{plain}"]
        left = f"{command.name} {command.arguments}"
        lines.append(f"  {left:<22}  {command.help}")
    lines += [
        "",
        f"{bold}Every command{plain}",
        "  --json FILE|-           Write the answer as JSON to a file, or to standard output",
        "  --quiet                 Print nothing but errors",
        "  --help                  Say what a command takes",
        "",
        f"{bold}Options{plain}",
        "  --version               Print the version",
        "",
        "Begin with: hasten demo",
    ]
    return "\n".join(lines)
