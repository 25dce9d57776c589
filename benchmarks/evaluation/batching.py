"""Static and continuous batching, and many short requests at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.batching.document import NAMES, batching_picture
from benchmarks.batching.measurement import CONTINUOUS, STATIC, SYSTEMS
from benchmarks.evaluation.page import Page, Records, Rendered, Table, origin, table
from forebay.bench.statistics import percentile, suffices

LARGE = ("batching-1536.json", "batching-128-512.json")
QUICK = "batching-quick.json"
LATENCY = "batching-latency.json"
BURST = "burst.json"
GPU = "batching-gpu.json"
GPU_LOADS = "serve-gpu.json"
PUBLISHED_BURST = (5000, 26.07, 0.15)
"""Of the original: prompts in one request, its seconds, and those of a request alone."""


def render(records: Records) -> Rendered:
    """Throughput and latency of both systems, the burst, figures of a GPU, and the documents' origins."""
    large = merged([records[name] for name in LARGE])
    quick, burst, waited = records[QUICK], records[BURST], records[LATENCY]
    model = large["provenance"]["model"]
    title = f"{model}, {large['held_equal']['number_type']}"
    limits = sorted(large["throughput"], key=int)
    limits = [limit for limit in limits if large["ratio"][limit]]
    ratios = [large["ratio"][limit] for limit in limits]
    return Rendered(
        tables={
            "throughput": table(*throughput_table(large)),
            "throughput-quick": table(*throughput_table(quick)),
            "latency": table(*latency_table(waited)),
            "burst": table(*burst_table(burst)),
            "throughput-gpu": table(*throughput_table(merged([records[GPU]]))),
            "loads-gpu": table(*loads_table(records[GPU_LOADS])),
            "origin": origin(records),
        },
        plots={"batching.svg": batching_picture(large, title)},
        finding=f"On two cores, {min(ratios):.1f} to {max(ratios):.1f} times the tokens per second of static "
        f"batching, more where answers are less even. A short request among {burst['requests']} takes "
        f"{burst['gain']:.1f} times less of the engine's time than alone.",
    )


def merged(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Documents of other limits or rates as one, limits in order; other fields are the first's."""
    found = dict(documents[0])
    for key in ("throughput", "output_throughput", "ratio", "latency", "reasons", "others_cores", "settings"):
        parts = {name: value for document in documents for name, value in document[key].items()}
        numbered = all(name.isdecimal() for name in parts)
        found[key] = dict(sorted(parts.items(), key=lambda one: int(one[0]))) if numbered else parts
    return found


def throughput_table(document: Mapping[str, Any]) -> Table:
    throughput, reasons = document["throughput"], document["reasons"]

    def shown(words: str, limit: str, *systems: str) -> str:
        doubtful = any(f"{system}, limit {limit}" in reasons for system in systems)
        return bracketed(words, doubtful=doubtful)

    rows = []
    for system in SYSTEMS:
        cells = [
            shown(f"{of[system]:,.0f}", limit, system) if of.get(system) else None
            for limit, of in throughput.items()
        ]
        if any(cells):
            rows.append([NAMES[system], *cells])
    multiples = [
        shown(f"{of[CONTINUOUS] / of[STATIC]:.1f} x", limit, STATIC, CONTINUOUS)
        if of.get(STATIC) and of.get(CONTINUOUS)
        else None
        for limit, of in throughput.items()
    ]
    if any(multiples):
        rows.append(["continuous over static", *multiples])
    return ("tokens/s, prompts and answers", *(f"max {limit}" for limit in throughput)), rows


def latency_table(document: Mapping[str, Any]) -> Table:
    """Latency by system and rate: the percentiles that the number of requests allows, and the longest."""
    rows = []
    for rate, of in document["latency"].items():
        for system in SYSTEMS:
            if (cell := of.get(system)) is not None:
                ordered = cell["cdf_s"]
                doubtful = f"{system}, {rate} requests/s" in document["reasons"]
                found = [
                    bracketed(f"{percentile(ordered, percent):.2f}", doubtful=doubtful)
                    if suffices(len(ordered), percent)
                    else None
                    for percent in (50, 90, 99)
                ]
                longest = bracketed(f"{ordered[-1]:.2f}", doubtful=doubtful) if ordered else None
                sent = f"{cell['rate_per_s']:.3g} (the study's {rate})"
                rows.append([NAMES[system], sent, cell["requests"], *found, longest])
    return ("latency, s", "requests/s", "requests", "p50", "p90", "p99", "longest"), rows


def burst_table(document: Mapping[str, Any]) -> Table:
    count, alone = document["requests"], document["alone"]["p50_s"]
    theirs, theirs_s, alone_s = PUBLISHED_BURST
    rows: list[list[object]] = []
    if alone:
        rows.append(["one alone (median)", f"{alone:.3f} s", f"{1 / alone:.1f}", f"{alone_s} s"])
    for name, words, published in (
        ("batch", f"{count:,} prompts in one HTTP request", f"{theirs_s} s for {theirs:,}"),
        ("apart", f"{count:,} HTTP requests at once", None),
    ):
        if one := document.get(name):
            rows.append([words, f"{one['latency_s']:.2f} s", f"{one['requests_per_s']:.1f}", published])
    if gain := document.get("gain"):
        published = f"{theirs * alone_s / theirs_s:.1f} x"
        rows.append(["of the engine's time, alone over in the batch", f"{gain:.1f} x", None, published])
    return ("", "took", "requests/s", "published"), rows


def loads_table(document: Mapping[str, Any]) -> Table:
    """Throughput and latency of each run of `forebay bench serve`."""
    rows: list[list[object]] = []
    for run in document["runs"]:
        figures = run["figures"]
        times = figures["distributions"]
        cells = [
            f"{figures['requests_per_s']:.1f}",
            f"{figures['output_tokens_per_s']:,.0f}",
            f"{figures['total_tokens_per_s']:,.0f}",
            *(f"{times[name]['percentiles']['50'] * 1000:,.1f} ms" for name in ("ttft", "tpot", "token_gap")),
            f"{times['e2el']['percentiles']['50']:.2f} s",
        ]
        doubtful = run["verdict"]["word"] != "VALID"
        asked = f"{run['asked']['schedule']['rate_per_s']:g}"
        rows.append([asked, *(bracketed(cell, doubtful=doubtful) for cell in cells)])
    heads = ("requests/s", "answered/s", "output tokens/s", "tokens/s with prompts")
    return (*heads, "TTFT p50", "TPOT p50", "gap between tokens p50", "answer p50"), rows


def bracketed(words: str, *, doubtful: bool) -> str:
    return f"({words})" if doubtful else words


PAGE = Page(
    "batching", "What does continuous batching gain?", (*LARGE, QUICK, LATENCY, BURST, GPU, GPU_LOADS), render
)
