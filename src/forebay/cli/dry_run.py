"""`forebay run --dry-run`: what would run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from forebay.cli.json_option import shows_text, write_json
from forebay.control_characters import replace_controls

if TYPE_CHECKING:
    from forebay.config.spec import PipelineSpec


def show_plan(spec: PipelineSpec, engine: Sequence[str], json: str | None, *, cluster: str | None) -> None:
    """Check what `spec` needs on this machine, and print it resolved, as YAML, and its graph.

    Nothing is started, made or written but the file of `--json`. Raises `SettingError` as a run would
    before it starts anything.
    """
    from forebay.config.plan import graph_text, resolved, stages_of, to_yaml
    from forebay.runtime.preflight import check_paths, check_secrets

    check_secrets(spec, here=cluster is None)
    check_paths(spec, make=False)
    document, stages = resolved(spec, engine), stages_of(spec, engine)
    write_json(json, {"pipeline": document, "graph": [asdict(stage) for stage in stages]})
    if shows_text(json):
        # The graph in comments, so that the whole is a pipeline file.
        graph = "\n".join(f"# {line}" for line in graph_text(stages).splitlines())
        typer.echo(replace_controls(f"{to_yaml(document)}\n{graph}"))
