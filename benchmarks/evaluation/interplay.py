"""What a stream's settings do to the engine, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.evaluation.invalid import invalid
from benchmarks.evaluation.page import Page, Records, Rendered, origin, table
from benchmarks.interplay.document import point_rows
from benchmarks.interplay.factors import BASE
from benchmarks.interplay.picture import interplay_picture

RECORD = "interplay.json"
WINDOWS = "interplay-windows.json"


def render(records: Records) -> Rendered:
    """Every point, what is INVALID, and the picture."""
    document = records[RECORD]
    cells = document["cells"]
    rows = point_rows(document)
    windows = records[WINDOWS]
    of_windows, told = point_rows(windows), batches(windows["cells"])
    base = [cell["stream"]["answered_s"]["p50"] for cell in cells if cell["factor"] == BASE and cell["valid"]]
    valid = [cell for cell in cells if cell["valid"]]
    noise = (
        f"The same base point gave {' and '.join(f'{value:.2f} s' for value in base)} to the answer (medians)"
    )
    return Rendered(
        tables={
            "points": table(rows[0], rows[1:]),
            "load": f"{document['rate_per_s']:.2f} events/s, {document['options']['events']} events at each "
            "point.\n",
            "invalid": invalid(document, cells, name_of),
            "windows": table(of_windows[0], of_windows[1:]),
            "windows-invalid": invalid(windows, windows["cells"], name_of),
            "origin": origin(records),
        },
        plots={"interplay.svg": interplay_picture(document)},
        finding=f"{noise}: only larger differences count. {len(valid)} of {len(cells)} points are valid.",
        learned={
            "Stream and engine": f"{noise}. {checkpoints(valid)} {shared(valid)} {queue(valid)} {told}",
        },
    )


def checkpoints(cells: list[Any]) -> str:
    """How long checkpoints took over all points."""
    took = [cell["stream"]["checkpoint_s"]["p50"] * 1000 for cell in cells]
    return (
        f"Checkpoints took {min(took):.0f} to {max(took):.0f} ms with requests in flight (medians of the "
        "valid points)."
    )


def shared(cells: list[Any]) -> str:
    """What the prefix cache found."""
    found = [
        f"{cell['stream']['resources']['prefix_hit_share'] * 100:.0f} % ({cell['value']})"
        for cell in cells
        if cell["factor"] == "prefix"
    ]
    return f"Of the prompts' tokens, vLLM's prefix cache held {' and '.join(found) or 'an unknown share'}."


def queue(cells: list[Any]) -> str:
    """Where requests waited in the engine."""
    waited = [name_of(cell) for cell in cells if cell["stream"]["resources"]["waiting_max"]]
    return f"Valid points at which requests waited in vLLM: {'; '.join(waited) or 'none'}."


def batches(cells: list[Any]) -> str:
    """How many calls ran at once in windows of few and of many keys."""
    found = [
        f"{cell['stream']['resources']['running_mean']:.1f} ({cell['value']})"
        for cell in cells
        if cell["factor"] == "windows" and cell["valid"]
    ]
    return f"Calls of windows that ran at once, on average: {', '.join(found) or 'unknown'}."


def name_of(cell: Mapping[str, Any]) -> str:
    return f"{cell['factor']}, {cell['value']}"


PAGE = Page("interplay", "What do a stream's settings do to the engine, and back?", (RECORD, WINDOWS), render)
