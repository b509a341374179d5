"""The report: one self-contained HTML page that tells the story of a study."""

from hasten.report.page import render, write

__all__ = ["render", "write"]
