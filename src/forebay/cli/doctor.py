"""`forebay doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.markup import escape

from forebay.control_characters import replace_controls
from forebay.engine.doctor import Verdict, examine
from forebay.settings import load_settings

STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.MISSING: "red"}


def doctor(json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False) -> None:
    """Say what is missing and how to get it. Status 1 where something needed is missing."""
    findings = examine(load_settings())
    if json:
        document = {"findings": [asdict(finding) for finding in findings]}
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        console = Console(highlight=False, soft_wrap=True)
        for finding in findings:
            style, verdict = STYLES[finding.verdict], finding.verdict.value
            found, mend = (escape(replace_controls(said)) for said in (finding.found, finding.mend))
            console.print(f"[{style}]{verdict:8}[/] {finding.subject}: {found}")
            if mend:
                console.print(f"{'':9}→ {mend}")
    if any(finding.verdict is Verdict.MISSING for finding in findings):
        raise typer.Exit(1)
