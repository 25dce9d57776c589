"""The tables and pictures of docs/results/grid.md and docs/results/interplay.md, from recorded documents.

`python -m tools.results_pages` brings both up to date with the JSON files beside them; a test checks that the
tables are. What stands outside the marks is written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from forebay.bench.presets.grid.picture import draw_grid
from forebay.bench.presets.grid.table import cell_rows, engine_rows, parallelism_name, short_model
from forebay.bench.presets.interplay.document import point_rows
from forebay.bench.presets.interplay.picture import draw_interplay

RESULTS = Path("docs/results")
BEGIN = "<!-- Made from {} by tools.results_pages: do not edit from here … -->"
END = "<!-- … to here. -->"
GRID, INTERPLAY = "grid", "interplay"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a table in Markdown, heads first."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def origin(document: Mapping[str, Any]) -> str:
    """Where the figures come from, in a few lines."""
    found = document["provenance"]
    machine = found["machine"]
    processor = f"{machine['cores']} cores of {machine['processor']}, {machine['memory_gb']:g} GB"
    versions = ", ".join(f"{name} {version}" for name, version in found.get("engine_versions", {}).items())
    lines = [
        f"```console\n{found['command']}\n```",
        "",
        f"{processor}; seed {found['seed']}. {versions}".strip(),
    ]
    if not document["complete"]:
        lines += ["", "Interrupted: what was measured until then."]
    if reasons := list(_reasons(document)):
        lines += ["", "Figures in brackets are INVALID:", "", *(f"- {reason}" for reason in reasons)]
    return "\n".join(lines)


def _reasons(document: Mapping[str, Any]) -> Iterator[str]:
    """Why figures are not valid, cell by cell, without what would mend it."""
    for one in (*document.get("engines", ()), *document["cells"]):
        own = one["reasons"]
        told = own if isinstance(own, list) else [text for each in own.values() for text in each]
        if told:
            words = "; ".join(dict.fromkeys(reason.partition("; end them")[0] for reason in told))
            yield f"{_name(one)}: {words}"


def _name(one: Mapping[str, Any]) -> str:
    if "factor" in one:
        return f"{one['factor']}, {one['value']}"
    name = f"{short_model(one['model'])}, {parallelism_name(one['parallelism'])}"
    return f"{name}, {one['arrival']}, {one['tail']}" if "arrival" in one else f"{name}, all at once"


def grid_part(document: Mapping[str, Any], name: str) -> str:
    """What each engine can do, the picture, and every cell."""
    return "\n\n".join(
        [
            origin(document),
            "All requests at once, output tokens per second:",
            table(engine_rows(document)),
            f"![Throughput of each engine, and the median from event to answer in each cell]({name}.svg)",
            "Every cell:",
            table(cell_rows(document)),
        ]
    )


def interplay_part(document: Mapping[str, Any], name: str) -> str:
    """The picture, and every point."""
    rate = f"{document['rate_per_s']:.2f} events/s, {document['options']['events']} at each point."
    picture = f"![What each setting does to the engine and to events]({name}.svg)"
    return "\n\n".join([origin(document), rate, picture, table(point_rows(document))])


Part = Callable[[Mapping[str, Any], str], str]
Draw = Callable[[Path, Mapping[str, Any]], None]
PAGES: Mapping[str, tuple[Part, Draw]] = {
    GRID: (grid_part, draw_grid),
    INTERPLAY: (interplay_part, draw_interplay),
}


def documents(kind: str, folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """The recorded documents of a page, by the names of their files."""
    return {path.stem: orjson.loads(path.read_bytes()) for path in sorted(folder.glob(f"{kind}*.json"))}


def page(text: str, kind: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with what stands between its marks made anew."""
    for name, document in found.items():
        begin = BEGIN.format(f"{name}.json")
        before, mark, rest = text.partition(begin)
        _, end, after = rest.partition(END)
        if not mark or not end:
            raise SystemExit(f"docs/results/{kind}.md: expected {begin!r} and {END!r}")
        text = f"{before}{begin}\n\n{PAGES[kind][0](document, name)}\n\n{END}{after}"
    return text


def main(folder: Path = RESULTS) -> None:
    """Write pages and pictures."""
    for kind, (_, draw) in PAGES.items():
        found = documents(kind, folder)
        path = folder / f"{kind}.md"
        path.write_text(page(path.read_text(), kind, found))
        for name, document in found.items():
            draw(folder / f"{name}.svg", document)


if __name__ == "__main__":
    main()
