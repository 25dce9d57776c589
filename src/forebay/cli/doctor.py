"""`forebay doctor`."""

from __future__ import annotations

from dataclasses import asdict

import typer

from forebay.cli.json_option import JsonFile, check_json, shows_text, write_json
from forebay.cli.terminal import results_console, say
from forebay.control_characters import replace_controls
from forebay.settings import load_settings

STYLES = {"ok": "green", "warning": "yellow", "missing": "red"}


def doctor(*, json: JsonFile = None) -> None:
    """Say what is missing and how to get it. The exit status is 1 if something needed is missing."""
    from rich.text import Text

    from forebay.engine.doctor import Verdict, examine

    check_json(json)
    findings = examine(load_settings())
    write_json(json, {"findings": [asdict(finding) for finding in findings]})
    if shows_text(json):
        console = results_console()
        for finding in findings:
            verdict, found = finding.verdict.value, replace_controls(finding.found)
            line = Text.assemble((f"{verdict:8}", STYLES[verdict]), f" {finding.subject}: {found}")
            say(console, line)
            if finding.mend:
                say(console, f"{'':9}→ {finding.mend}")
    if any(finding.verdict is Verdict.MISSING for finding in findings):
        raise typer.Exit(1)
