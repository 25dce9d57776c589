"""`python -m benchmarks tools-agreement`: compares `forebay bench` with independent tools."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import note, report, show_table
from forebay.cli.output import JsonFile, check_json
from forebay.errors import SettingError


def tools_agreement(
    *,
    engine: Annotated[
        str, typer.Option(metavar="URL", help="The engine to measure.")
    ] = "http://127.0.0.1:8100",
    tokenizer: Annotated[Path, typer.Option(help="Folder with the model's tokenizer.")],
    vllm: Annotated[
        Path | None, typer.Option(metavar="PYTHON", help="The Python of an environment with vLLM.")
    ] = None,
    aiperf: Annotated[Path | None, typer.Option(metavar="COMMAND", help="AIPerf's command.")] = None,
    guidellm: Annotated[Path | None, typer.Option(metavar="COMMAND", help="guidellm's command.")] = None,
    requests: Annotated[int, typer.Option(min=2, help="Requests of each tool in each turn.")] = 12,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 1,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 512,
    output_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 32,
    turns: Annotated[int, typer.Option(min=1, help="Turns of all tools.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the first turn; each turn has the next one.")] = 0,
    core: Annotated[
        list[int] | None, typer.Option(min=0, help="A core for the tools; repeatable. Default: all.")
    ] = None,
    json: JsonFile = None,
) -> None:
    """Compare TTFT, TPOT and throughput with other tools. Exit status 1 if fewer than two agree within 3
    %."""
    from benchmarks import tools_agreement as agreement

    check_json(json)
    tools = {}
    if vllm is not None:
        tools["vllm bench serve"] = agreement.vllm_bench(vllm)
    if aiperf is not None:
        tools["aiperf"] = agreement.aiperf(aiperf)
    if guidellm is not None:
        tools["guidellm"] = agreement.guidellm(guidellm)
    if not tools:
        raise SettingError("name at least one tool: --vllm, --aiperf or --guidellm")
    if core:
        os.sched_setaffinity(0, core)
    found = agreement.measure_agreement(
        tools,
        agreement.server_at(engine, tokenizer),
        agreement.Shape(requests, concurrency, prompt_tokens, output_tokens),
        turns=turns,
        seed=seed,
        note=note,
    )
    rows = [
        (
            each["tool"],
            each["figure"],
            f"{each['ours']:.2f}",
            f"{each['theirs']:.2f}",
            f"{each['difference']:+.1%}",
            f"{each['least']:+.1%} to {each['most']:+.1%}",
            "yes" if each["agrees"] else "no",
        )
        for each in found["comparison"]
    ]
    header = ("tool", "figure", "forebay", "tool's", "difference", "of all turns", "agrees")
    report(json, found, lambda: show_table(header, rows), passed=found["passed"])
