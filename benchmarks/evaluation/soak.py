"""The figures of the page about overhead that come from a soak run."""

from __future__ import annotations

from benchmarks.evaluation.page import Page, Records, Rendered
from benchmarks.soak import soak_picture

RECORD = "soak.json"


def render(records: Records) -> Rendered:
    document = records[RECORD]
    heap, threads = (document["trends"]["restarts"][name] for name in ("heap_mb", "threads"))
    return Rendered(
        tables={},
        plots={"soak.svg": soak_picture(document)},
        finding=f"Over {document['restarts']} restarts in one JVM, Java's heap grew by {_mb(heap['slope'])} "
        f"a restart ({_mb(heap['low'])} to {_mb(heap['high'])}), "
        f"the count of threads by {threads['slope']:.1f}.",
    )


def _mb(value: float) -> str:
    return f"{value:.2f} MB".replace("-", "−")


PAGE = Page("overhead", "Does memory grow?", (RECORD,), render)
