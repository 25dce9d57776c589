"""What a stream's settings do to the engine, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.evaluation.page import Page, Records, Rendered, invalid, origin, table
from benchmarks.interplay.document import interplay_picture, point_rows
from benchmarks.interplay.factors import BASE

RECORD = "interplay.json"
WINDOWS = "interplay-windows.json"


def render(records: Records) -> Rendered:
    """Every point, what is INVALID, and the picture."""
    document = records[RECORD]
    cells = document["cells"]
    rows = point_rows(document)
    windows = records[WINDOWS]
    of_windows = point_rows(windows)
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
    )


def name_of(cell: Mapping[str, Any]) -> str:
    return f"{cell['factor']}, {cell['value']}"


PAGE = Page("grid", "What do a stream's settings do to the engine, and back?", (RECORD, WINDOWS), render)
