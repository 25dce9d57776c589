"""Options for the arrival times of a load, shared by several commands."""

from __future__ import annotations

from typing import Annotated

import typer

LOAD = "When to send"
Burstiness = Annotated[
    float | None,
    typer.Option(
        help="With --rate: shape of the gamma distribution of gaps; below 1 burstier, above 1 more even.",
        rich_help_panel=LOAD,
    ),
]
EvenGaps = Annotated[
    bool, typer.Option("--constant", help="With --rate: constant gaps.", rich_help_panel=LOAD)
]
Ramp = Annotated[
    str | None,
    typer.Option(
        metavar="FROM:TO:SECONDS", help="A rate that grows linearly over SECONDS.", rich_help_panel=LOAD
    ),
]
BurstsOf = Annotated[
    str | None,
    typer.Option(metavar="SIZE:SECONDS", help="Bursts of SIZE every SECONDS.", rich_help_panel=LOAD),
]
Speed = Annotated[float, typer.Option(help="With --trace: speed-up factor.", rich_help_panel=LOAD)]
