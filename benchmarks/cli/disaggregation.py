"""`python -m benchmarks disaggregation`: separate replicas for prefill and decode, in the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from benchmarks.cli.options import command_line
from forebay.cli.output import JsonFile, check_json, errors_console, results_console, shows_text, write_json
from forebay.errors import SettingError


def disaggregation(
    *,
    data: Annotated[Path, typer.Option(help="The folder of the recorded traces.")] = Path("../shared/data"),
    replicas: Annotated[int, typer.Option(min=2, max=64, help="How many, both pools together.")] = 8,
    engine: Annotated[str, typer.Option(help="A calibrated engine: llama-8b or qwen-32b.")] = "llama-8b",
    ttft: Annotated[float, typer.Option(help="SLO: seconds to the first token.")] = 1.0,
    tpot: Annotated[float, typer.Option(help="SLO: seconds per further token, on average.")] = 0.05,
    quick: Annotated[bool, typer.Option("--quick", help="3000 requests instead of 8000.")] = False,
    json: JsonFile = None,
) -> None:
    """Try every split of prefill and decode replicas, and an adaptive split while requests change.

    Takes minutes. Exit status 1 if the planned split is more than one off, or the adaptive one misses its
    goal.
    """
    from benchmarks.disaggregation import LOAD, measure, measure_switch, workloads
    from forebay.bench.provenance import provenance
    from forebay.planning.simulate.disaggregation import Transfer
    from forebay.planning.simulate.engine import find_model
    from forebay.planning.simulate.figures import Slo

    check_json(json)
    if not (0 < ttft < 1e6 and 0 < tpot < 1e6):
        raise SettingError(f"--ttft, --tpot: expected seconds above 0, found {ttft:g} and {tpot:g}")
    model, loads = find_model(engine), workloads(data, 3000 if quick else 8000)
    with errors_console().status("reading") as status:
        slo, transfer = Slo(ttft, 1.0, tpot), Transfer()

        def tell(part: str) -> None:
            status.update(Text(part))

        found = measure(loads, model, replicas, slo, transfer, tell=tell)
        rates = {name: LOAD * one["best_per_s"] for name, one in found["workloads"].items()}
        half_s = 120.0 if quick else 1200.0
        found["switch"] = measure_switch(
            loads, rates, half_s, engine=model, replicas=replicas, slo=slo, transfer=transfer, tell=tell
        )
    origin = provenance(command=command_line(), model=model.name)
    write_json(json, {"provenance": origin, **found})
    if shows_text(json):
        _show(found)
    if not (found["passed"] and found["switch"]["passed"]):
        raise typer.Exit(1)


def _show(found: dict[str, Any]) -> None:
    table = Table(box=None, title=f"requests/s with {found['goal']:.0%} within the SLO", title_justify="left")
    for column in ("workload", "planned", "best", "planned split", "best split", "mixed"):
        table.add_column(column, no_wrap=True)
    for name, one in found["workloads"].items():
        splits = (f"{at} : {found['replicas'] - at}" for at in (one["planned_prefill"], one["best_prefill"]))
        rates = (f"{one[key]:.2f}" for key in ("planned_per_s", "best_per_s", "mixed_per_s"))
        table.add_row(name, *splits, *rates)
    results_console().print(table)
    switch = found["switch"]
    table = Table(
        box=None, title=f"{switch['half_s']:.0f} s of each, one after the other", title_justify="left"
    )
    for column in ("workload", "requests/s", "goodput", "best fixed split", "its goodput"):
        table.add_column(column, no_wrap=True)
    for name, one in switch["halves"].items():
        at = one["best_fixed_prefill"]
        table.add_row(
            name,
            f"{one['rate_per_s']:.1f}",
            f"{one['goodput']:.1%}",
            f"{at} : {found['replicas'] - at}",
            f"{one['best_fixed_goodput']:.1%}",
        )
    results_console().print(table)
