"""A run's document as tables, for a terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.feed import Seen, doubled
from benchmarks.peers.run import Load, Observed
from benchmarks.workload import quantile
from forebay.errors import SettingError
from forebay.testing.script import CallReport

Found = dict[str, Any]
FOR_P99 = 1000
"""Minimum number of samples for a 99th percentile."""


def common(load: Load, seen: Observed) -> Found:
    answered = {one.index for one in seen.committed if one.answered}
    named = {one.index for one in seen.committed}
    return {
        "events": load.events,
        "answered": len(answered),
        "given_up": len(named - answered),
        "lost": load.events - len(named),
        "doubled": doubled(seen.committed),
        "ended": seen.ended,
        "ready_s": round(seen.ready_s, 1),
        "late_ms": round(seen.late_s * 1000, 1),
    }


def latency(load: Load, seen: Observed, engine_s: Callable[[int], float]) -> Found:
    """Rate, added latency, checkpoints and resources, without the warm-up."""
    first = round(load.warm_s * load.rate_per_s)
    warm_s = seen.start_s + load.warm_s
    offered_s = load.seconds - load.warm_s
    in_time = {one.index for one in seen.written if warm_s < one.at_s <= warm_s + offered_s}
    found: Found = {"rate_per_s": round(len(in_time) / offered_s, 1)}
    for name, results in (("added_ms", seen.written), ("added_ms_committed", seen.committed)):
        added, unanswered = _added_ms(load, seen, results, engine_s, first)
        found[f"{name}_p50"] = round(quantile(added, 0.5), 1)
        found[f"{name}_p90"] = round(quantile(added, 0.9), 1)
        if len(added) >= FOR_P99:
            found[f"{name}_p99"] = round(quantile(added, 0.99), 1)
        if name == "added_ms":
            found["unanswered"] = unanswered
            found["added_ms"] = [round(quantile(added, share / 100), 2) for share in range(101)]
    return {**found, **checkpoints(seen.checkpoints_ms), **use(seen, warm_s, len(in_time))}


def _added_ms(
    load: Load, seen: Observed, results: Sequence[Seen], engine_s: Callable[[int], float], first: int
) -> tuple[list[float], int]:
    at_s: dict[int, float] = {}
    for one in results:
        at_s.setdefault(one.index, one.at_s)
    last_s = max([seen.end_s, *at_s.values()])
    wanted = range(first, load.events)
    added = sorted(
        (at_s.get(index, last_s) - seen.start_s - index / load.rate_per_s - engine_s(index)) * 1000
        for index in wanted
    )
    return added, sum(index not in at_s for index in wanted)


def checkpoints(took_ms: Sequence[int] | None) -> Found:
    if not took_ms:
        return {}
    ordered = sorted(took_ms)
    return {
        "checkpoint_ms_p50": quantile(ordered, 0.5),
        "checkpoint_ms_p99": quantile(ordered, 0.99),
        "checkpoints": len(ordered),
    }


def use(seen: Observed, begin_s: float, results: int) -> Found:
    """Processor milliseconds per result, and maximum memory, from `begin_s` to the last due event."""
    inside = [one for one in seen.use if begin_s <= one.at_s <= seen.end_s]
    if len(inside) < 2:
        return {}
    first, last = inside[0], inside[-1]
    share = (last.at_s - first.at_s) / (seen.end_s - begin_s)
    worked_ms = (last.processor_s - first.processor_s) * 1000
    return {
        "processor_ms_per_event": round(worked_ms / (results * share), 2) if results else None,
        "memory_mb": round(max(one.memory_mb for one in inside)),
    }


def calls(report: CallReport) -> Found:
    tries = {id: count for id, count in report.calls.items() if id.startswith("event-")}
    return {
        "calls": sum(tries.values()),
        "called_again": sum(tries.values()) - len(tries),
        "max_in_flight": report.max_in_flight,
    }


def caught_up_s(load: Load, seen: Observed, until_s: float) -> float | None:
    """Seconds from `until_s`, after the first event, until every event due by then had a written result; None
    if one never had."""
    first: dict[int, float] = {}
    for one in seen.written:
        first.setdefault(one.index, one.at_s)
    due = range(min(load.events, int(until_s * load.rate_per_s)))
    if any(index not in first for index in due):
        return None
    return round(max(0.0, max((first[index] for index in due), default=0.0) - seen.start_s - until_s), 1)


Document = dict[str, Any]
Figures = Mapping[str, Any]
NONE = "–"
NOT_MEASURED = "not measured in the recorded runs"


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    cell: Callable[[Figures], str]


@dataclass(frozen=True, slots=True)
class TableOf:
    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    reasons: Mapping[str, str]


def number(name: str, unit: str = "", digits: int = 0) -> Callable[[Figures], str]:
    def cell(found: Figures) -> str:
        value = found.get(name)
        return NONE if value is None else f"{value:,.{digits}f}{unit}"

    return cell


def milliseconds(name: str, *, bounded: bool = True) -> Callable[[Figures], str]:
    """Milliseconds; seconds from ten thousand on."""

    def cell(found: Figures) -> str:
        value = found.get(name)
        if value is None:
            return NONE
        least = "≥ " if bounded and found.get("unanswered") else ""
        return least + (f"{value / 1000:.1f} s" if value >= 10_000 else f"{value:,.0f} ms")

    return cell


def doubt(found: Figures) -> str | None:
    """Why figures are INVALID: events have an answer although the engine was never called for them."""
    if "calls" not in found:
        return None
    asked = found["calls"] - found["called_again"]
    if asked >= found["answered"]:
        return None
    return f"INVALID: {found['answered']:,} events have an answer, the engine was asked about {asked:,}"


def _end(found: Figures) -> str:
    return "no" if found.get("ended") is None else "yes"


RATE = Column("events/s", number("rate_per_s", digits=1))
ADDED = (
    Column("added p50", milliseconds("added_ms_p50")),
    Column("added p99", milliseconds("added_ms_p99")),
    Column("committed p50", milliseconds("added_ms_committed_p50")),
    Column("committed p99", milliseconds("added_ms_committed_p99")),
)
TAKEN = (
    Column("p50", milliseconds("added_ms_p50")),
    Column("p90", milliseconds("added_ms_p90")),
    Column("committed p50", milliseconds("added_ms_committed_p50")),
    Column("committed p90", milliseconds("added_ms_committed_p90")),
)
CHECKPOINTS = (
    Column("checkpoint p50", milliseconds("checkpoint_ms_p50", bounded=False)),
    Column("checkpoints", number("checkpoints")),
)
USE = (
    Column("processor/event", number("processor_ms_per_event", " ms", 1)),
    Column("memory", number("memory_mb", " MB")),
)
LOST = (
    Column("lost", number("lost")),
    Column("given up", number("given_up")),
    Column("doubled", number("doubled")),
)
COLUMNS: dict[str, tuple[Column, ...]] = {
    "latency": (RATE, *ADDED, *CHECKPOINTS, Column("most in flight", number("max_in_flight")), *USE),
    "vllm": (RATE, *TAKEN, *CHECKPOINTS, *LOST[:2], *USE),
    "refusals": (
        *LOST,
        Column("calls while refused", number("calls_while_refused")),
        Column("caught up after", number("caught_up_s", " s", 1)),
        Column("ended", _end),
    ),
    "kill": (
        *LOST,
        Column("called again", number("called_again")),
        Column("next result after", number("back_s", " s", 1)),
    ),
}


def title_of(part: str, shape: Figures) -> str:
    warm_s = shape.get("warm_s", 0)
    rate = f"{shape['rate_per_s']:g} events/s for {shape['seconds'] - warm_s:g} s"
    if warm_s:
        rate += f", after {warm_s:g} s of the same"
    return {
        "latency": f"95 % of calls 50 ms, 5 % 2 s; {rate}",
        "vllm": f"vLLM with SmolLM2-135M, at most {shape.get('max_tokens', 0)} tokens; {rate}; the engine's "
        f"time is included",
        "refusals": f"429 for {shape.get('refused_s', 0):g} s; {rate}",
        "kill": f"SIGKILL after {shape.get('kill_at_s', 0):g} s; {rate}",
    }[part]


def table_of(part: str, document: Document) -> TableOf:
    measured = document["parts"][part]
    columns = COLUMNS[part]
    rows, reasons = [], {}
    for name, about in document["peers"].items():
        found = measured["peers"].get(name, {"skipped": about.get("skipped", NOT_MEASURED)})
        reason = found.get("skipped") or found.get("failed")
        doubtful = doubt(found)
        if detail := reason or doubtful:
            reasons[about["title"]] = detail
        shown = "({})" if doubtful else "{}"
        cells = (shown.format(column.cell(found)) if reason is None else "" for column in columns)
        rows.append((about["title"], *cells))
    heads = ("", *(column.title for column in columns))
    return TableOf(title_of(part, measured), heads, tuple(rows), reasons)


def markdown(table: TableOf) -> str:
    lines = [f"**{table.title}**", "", _row(table.heads), _row(["---"] * len(table.heads))]
    lines += [_row(row) for row in table.rows]
    if table.reasons:
        lines += ["", *(f"- {title}: {_line(reason)}" for title, reason in table.reasons.items())]
    return "\n".join(lines)


def added_lines(document: Document) -> dict[str, Sequence[float]]:
    """Quantiles of the added time by peer's title; without INVALID ones."""
    peers = document["parts"]["latency"]["peers"]
    return {
        about["title"]: peers[name]["added_ms"]
        for name, about in document["peers"].items()
        if "added_ms" in peers.get(name, {}) and doubt(peers[name]) is None
    }


def merged(documents: Iterable[Document], peers: Mapping[str, str]) -> Document:
    found: Document = {"peers": {}, "parts": {}, "runs": []}
    for document in documents:
        try:
            found["runs"] += document.get("runs") or [document["provenance"]]
            found["peers"] |= document["peers"]
            for part, measured in document["parts"].items():
                there = found["parts"].setdefault(part, {**measured, "peers": {}})
                if {**there, "peers": 0} != {**measured, "peers": 0}:
                    raise SettingError(f"the part {part} was measured with different loads")
                there["peers"] |= measured["peers"]
        except (KeyError, TypeError, AttributeError):
            raise SettingError("a document to merge was not written by this command") from None
    found["peers"] = {
        name: found["peers"].get(name, {"title": title, "skipped": NOT_MEASURED})
        for name, title in peers.items()
    }
    return found


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")[:400]
