"""The command line: one file for each command, thin over `hasten.api`."""

from hasten.cli.app import main

__all__ = ["main"]
