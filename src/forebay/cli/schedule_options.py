"""The options that say when a load's requests or events come, shared by the commands that have them."""

from __future__ import annotations

from typing import Annotated

import typer

LOAD = "When to send"
Burstiness = Annotated[
    float | None,
    typer.Option(
        help="With --rate: gaps from a gamma distribution of this shape; below 1 in bursts, above 1 evener.",
        rich_help_panel=LOAD,
    ),
]
EvenGaps = Annotated[bool, typer.Option("--constant", help="With --rate: even gaps.", rich_help_panel=LOAD)]
Ramp = Annotated[
    str | None,
    typer.Option(metavar="FROM:TO:SECONDS", help="A rate that grows over so long.", rich_help_panel=LOAD),
]
BurstsOf = Annotated[
    str | None,
    typer.Option(metavar="SIZE:SECONDS", help="So many at once, every so often.", rich_help_panel=LOAD),
]
Speed = Annotated[float, typer.Option(help="With --trace: so many times as fast.", rich_help_panel=LOAD)]
