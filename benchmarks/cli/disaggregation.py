"""`python -m benchmarks disaggregation`: separate replicas for prefill and decode, in the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from benchmarks.cli.options import command_line, report, show_table
from forebay.cli.output import JsonFile, check_json, errors_console
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
    """Try every split of prefill and decode replicas. Takes minutes. Exit status 1 if the planned split is
    more than one off."""
    from benchmarks.disaggregation import measure, workloads
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
    document = {"provenance": provenance(command=command_line(), model=model.name), **found}
    report(json, document, lambda: _show(found), passed=found["passed"])


def _show(found: dict[str, Any]) -> None:
    show_table(
        ("workload", "planned", "best", "planned split", "best split", "mixed"),
        (
            (
                name,
                *(f"{at} : {found['replicas'] - at}" for at in (one["planned_prefill"], one["best_prefill"])),
                *(f"{one[key]:.2f}" for key in ("planned_per_s", "best_per_s", "mixed_per_s")),
            )
            for name, one in found["workloads"].items()
        ),
        f"requests/s with {found['goal']:.0%} within the SLO",
    )
