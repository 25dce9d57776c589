"""Options of commands: one way to declare them, and those that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

LOAD, PIPELINE, REPORT = "When to send", "Pipeline", "Report"


def option(help: str, *names: str, panel: str | None = None, **settings: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **settings)


HtmlFile = Annotated[Path | None, option("Write the report as an HTML page.", metavar="FILE", panel=REPORT)]
ModelName = Annotated[str | None, option("Model name, if the engine serves several.")]
ApiKeyEnv = Annotated[
    str | None, option("Environment variable that holds the engine's API key.", metavar="NAME")
]
Burstiness = Annotated[
    float | None,
    option(
        "With --rate: shape of the gamma distribution of gaps; below 1 burstier, above 1 more even.",
        panel=LOAD,
    ),
]
EvenGaps = Annotated[bool, option("With --rate: constant gaps.", "--constant", panel=LOAD)]
Ramp = Annotated[
    str | None, option("A rate that grows linearly over SECONDS.", panel=LOAD, metavar="FROM:TO:SECONDS")
]
BurstsOf = Annotated[str | None, option("Bursts of SIZE every SECONDS.", panel=LOAD, metavar="SIZE:SECONDS")]
TraceFile = Annotated[
    Path | None,
    option(
        "Use a trace in Mooncake's or Azure's format: its arrivals, and for a server lengths and prefixes.",
        metavar="FILE",
        panel=LOAD,
    ),
]
Speed = Annotated[float, option("With --trace: speed-up factor.", panel=LOAD)]
SetValues = Annotated[
    list[str] | None,
    option(
        "Override a pipeline setting, such as checkpoint.interval_s=5; may be repeated.", metavar="KEY=VALUE"
    ),
]
Processes = Annotated[
    list[str] | None,
    option(
        "Sample CPU and memory of a process on this machine and its children. May be repeated.",
        metavar="NAME=PID",
        panel=REPORT,
    ),
]
