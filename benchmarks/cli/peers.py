"""`peers` measures other systems; `evaluation` makes the tables of docs/results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.text import Text

from benchmarks.cli import common
from forebay.cli.options import option
from forebay.cli.output import JsonFile, errors_console, print_line, results_console, shows_text, write_json
from forebay.errors import SettingError
from forebay.files import read_bytes

MAX_BYTES = 16 << 20


def peers(
    *,
    peer: Annotated[list[str] | None, option("A peer; repeatable. Default: all.", metavar="NAME")] = None,
    part: Annotated[
        list[str] | None, option("latency, vllm, refusals or kill; repeatable. Default: all.", metavar="PART")
    ] = None,
    quick: common.Quick = False,
    recorded: Annotated[
        list[Path] | None,
        option(
            "Measure nothing: put together what earlier runs wrote with --json; repeatable.",
            "--from",
            metavar="FILE",
        ),
    ] = None,
    json: JsonFile = None,
    plot: common.Plot = None,
) -> None:
    """Do the same work with other systems, each in its own environment, and with Forebay."""
    from benchmarks.peers.parts import PARTS
    from benchmarks.peers.peers import PEERS, peers_named
    from benchmarks.peers.tables import merged

    common.check_report_files(json, plot)
    common.check_known("--part", part, PARTS)
    chosen = peers_named(peer)
    if recorded:
        document = merged((_read(path) for path in recorded), {each.name: each.title for each in PEERS})
    else:
        document = _measure_peers(chosen, [each for each in PARTS if not part or each in part], quick=quick)
    write_json(json, document)
    if plot is not None:
        _draw_peers(plot, document)
    if shows_text(json):
        _show_peers(document)


def _measure_peers(chosen: Any, parts: Any, *, quick: bool) -> dict[str, Any]:
    from benchmarks.peers.parts import measure_peers
    from forebay.engine.launch import ConsoleProgress
    from forebay.settings import load_settings

    console = errors_console()
    document = measure_peers(
        chosen,
        parts,
        load_settings(),
        quick=quick,
        progress=ConsoleProgress(console),
        note=lambda words: print_line(console, words),
    )
    return {"provenance": common.provenance(), **document}


def _read(path: Path) -> dict[str, Any]:
    try:
        found = orjson.loads(read_bytes(path, MAX_BYTES, f"--from: {path}"))
    except orjson.JSONDecodeError:
        raise SettingError(f"--from: {path} is not JSON") from None
    if not isinstance(found, dict):
        raise SettingError(f"--from: {path} holds no report")
    return found


def _draw_peers(path: Path, document: dict[str, Any]) -> None:
    from benchmarks.peers.tables import added_lines, title_of
    from benchmarks.picture import added_picture
    from forebay.pages.picture import write_picture

    measured = document["parts"].get("latency")
    if measured is None:
        raise SettingError("--plot: latency was not measured")
    write_picture(path, added_picture(added_lines(document), title_of("latency", measured)))


def _show_peers(document: dict[str, Any]) -> None:
    from benchmarks.peers.tables import markdown, table_of

    console = results_console()
    for part in document["parts"]:
        # Do not wrap, even in a narrow terminal.
        print_line(console, Text(markdown(table_of(part, document)) + "\n"))


def evaluation(
    *,
    folder: Annotated[Path, option("Where the pages and the recorded files are.")] = Path("docs/results"),
    check: Annotated[bool, option("Write nothing; status 1 if something would change.", "--check")] = False,
    json: JsonFile = None,
) -> None:
    """Regenerate every table and plot of docs/results from the recorded JSON files there. Takes seconds."""
    from benchmarks.evaluation import PAGES
    from benchmarks.evaluation import page as pages

    common.check_report_files(json)
    files = pages.evaluation(folder, PAGES)
    paths = pages.changed(files) if check else pages.write(files)
    write_json(json, {"files": len(files), "changed": [str(path) for path in paths]})
    if shows_text(json):
        for path in paths:
            print_line(results_console(), f"{path} {'differs' if check else 'written'}")
        if not paths:
            print_line(results_console(), f"{len(files)} files in {folder} are as recorded")
    if check and paths:
        raise typer.Exit(1)
