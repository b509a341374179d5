"""The options that several commands share, written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

APP: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
"""How every typer application is made: help is ours, and no shell is touched."""

DATA, GOAL, SEARCH, MACHINE, COST, OUTPUT = "Data and quality", "Goal", "Search", "Machine", "Cost and carbon", "Output"

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="ONNX, OpenVINO, .skops, XGBoost or LightGBM file, Hugging Face folder, or module:function.",
        show_default=False,
    ),
]
Subject = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="ONNX, OpenVINO, .skops, XGBoost or LightGBM file, Hugging Face folder, module:function, or a bundle.",
        show_default=False,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DATA",
        help="Samples: .npz, .npy, .jsonl, .csv, .parquet, a folder of images, or module:function. "
        "Without it hasten makes samples from the signature.",
        rich_help_panel=DATA,
    ),
]
MetricName = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="METRIC",
        help="accuracy, f1, spearman, perplexity, ... or module:function.",
        rich_help_panel=DATA,
    ),
]
Label = Annotated[
    str | None, typer.Option("--label", metavar="KEY", help="Which key of the data is the label.", rich_help_panel=DATA)
]
ModelOutput = Annotated[
    str | None,
    typer.Option("--output", metavar="KEY", help="Which output of the model the metric judges.", rich_help_panel=DATA),
]
Preprocess = Annotated[
    str | None,
    typer.Option(
        "--preprocess",
        metavar="HOW",
        help="For images: module:function, or resize=224,mean=0.5,std=0.5,layout=nchw.",
        rich_help_panel=DATA,
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        help="State dict (.safetensors, .pt) for a model that module:function makes.",
        rich_help_panel=DATA,
    ),
]
NewTokens = Annotated[
    int | None,
    typer.Option(
        "--new-tokens",
        metavar="N",
        min=1,
        help="How many tokens a language model answers with.",
        show_default="64",
        rich_help_panel=DATA,
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Open files that can run code when opened, such as .pt2 or some .skops.", rich_help_panel=DATA
    ),
]
BatchAxis = Annotated[
    str,
    typer.Option(
        "--batch-axis", metavar="auto|yes|no", help="Whether samples carry a batch axis.", rich_help_panel=DATA
    ),
]
GoalName = Annotated[
    str,
    typer.Option(
        "--goal",
        metavar="GOAL",
        help="latency, throughput, p99, memory, size, energy or cost.",
        rich_help_panel=GOAL,
    ),
]
MaxDrop = Annotated[
    str,
    typer.Option(
        "--max-drop",
        metavar="DROP",
        help="How much quality may be lost: 0.5pt is absolute, 1% is relative.",
        rich_help_panel=GOAL,
    ),
]
Scenario = Annotated[
    str | None,
    typer.Option(
        "--scenario",
        metavar="NAME",
        help="single-stream, multi-stream, server or offline.",
        rich_help_panel=GOAL,
    ),
]
Budget = Annotated[
    str, typer.Option("--budget", metavar="TIME", help="Time to spend: 90s, 5m, 1h.", rich_help_panel=GOAL)
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="LEVER", help="Use only this lever; repeat.", rich_help_panel=SEARCH),
]
Skip = Annotated[
    list[str] | None,
    typer.Option("--skip", metavar="LEVER", help="Leave this lever out; repeat.", rich_help_panel=SEARCH),
]
Runtimes = Annotated[
    list[str] | None,
    typer.Option("--runtime", metavar="NAME", help="Use only this runtime; repeat.", rich_help_panel=SEARCH),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of every random choice.", rich_help_panel=SEARCH)]
Cpus = Annotated[
    int | None,
    typer.Option(
        "--cpus", metavar="N", min=1, help="Use this many cores; by default all allowed here.", rich_help_panel=MACHINE
    ),
]
Memory = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", help="Memory limit of each worker: 512MB, 4GB.", rich_help_panel=MACHINE),
]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Where studies are kept: a SQLite file or postgresql://...",
        rich_help_panel=MACHINE,
    ),
]
Price = Annotated[
    float | None,
    typer.Option("--price", metavar="USD", min=0, help="Price of this device for an hour.", rich_help_panel=COST),
]
Country = Annotated[
    str | None,
    typer.Option("--country", metavar="CODE", help="Grid of this country (ISO code).", rich_help_panel=COST),
]
Pue = Annotated[
    float,
    typer.Option("--pue", metavar="FACTOR", min=1, help="Power usage effectiveness of the site.", rich_help_panel=COST),
]
Pack = Annotated[bool, typer.Option("--pack", help="Write the bundle as a single file.", rich_help_panel=OUTPUT)]
Fallback = Annotated[
    bool,
    typer.Option(
        "--fallback",
        help="Ship the best on another runtime inside the bundle, for machines that lack the first.",
        rich_help_panel=OUTPUT,
    ),
]
Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE|-",
        help="Write the answer as JSON; with - only JSON goes to standard output.",
        rich_help_panel=OUTPUT,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.", rich_help_panel=OUTPUT)]
