"""Other systems at the same work."""

from __future__ import annotations

from typing import Any

from benchmarks.evaluation.page import Page, Records, Rendered, origin
from benchmarks.peers.tables import added_lines, doubt, markdown, table_of, title_of
from benchmarks.picture import added_picture

RECORD = "peers.json"
LATENCY = "latency"


def render(records: Records) -> Rendered:
    """One table for each part, where the runs come from, and the picture of the latency added."""
    document = records[RECORD]
    parts = document["parts"]
    measured, titles = parts[LATENCY]["peers"], {name: of["title"] for name, of in document["peers"].items()}
    ordered = in_order(measured)
    ours = measured["forebay"]
    return Rendered(
        tables={part: markdown(table_of(part, document)) + "\n" for part in parts}
        | {"origin": runs(document)},
        plots={"peers.svg": added_picture(added_lines(document), title_of(LATENCY, parts[LATENCY]))},
        finding=f"Forebay added {words_for(ours['added_ms_p50'])} to an event in the median and "
        f"{words_for(ours['added_ms_p99'])} at the 99th percentile. {len(measured)} of {len(titles)} systems "
        f"were measured, {len(measured) - len(ordered)} with figures that are INVALID.",
    )


def in_order(measured: Any) -> list[tuple[str, Any]]:
    """Those with figures that are valid, the least latency first."""
    found = [(name, of) for name, of in measured.items() if "added_ms_p50" in of and doubt(of) is None]
    return sorted(found, key=lambda one: float(one[1]["added_ms_p50"]))


def words_for(value_ms: float) -> str:
    return f"{value_ms / 1000:.1f} s" if value_ms >= 1000 else f"{value_ms:.0f} ms"


def runs(document: Any) -> str:
    return "".join(origin({RECORD: {"provenance": provenance}}) for provenance in document["runs"])


PAGE = Page("peers", "What do other systems add, take and lose at the same work?", (RECORD,), render)
