"""The page about routing: the fleet on Ray."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.evaluation.page import Page, Records, Rendered, Table, origin, table
from benchmarks.ray_fleet.measure import WAYS

RECORD = "ray.json"
CLIENTS = {"gateway": "any client of the gateway", "pipeline": "a pipeline's client"}


def render(records: Records) -> Rendered:
    found = records[RECORD]
    return Rendered(
        tables={
            "ways": table(*ways_table(found)),
            "targets": table(*targets_table(found)),
            "rounds": table(*rounds_table(found)),
            "kills": table(*kills_table(found)),
            "origin": origin(records),
        },
        finding=finding(found),
    )


def ways_table(found: dict[str, Any]) -> Table:
    rows = [
        (
            title,
            one["requests"],
            one["failed"],
            _share(one["hit_share"]),
            _share(one["goodput"]),
            _ms(one["ttft_ms_p50"]),
            _ms(one["ttft_ms_p99"]),
        )
        for way, title in WAYS.items()
        if (one := found["ways"].get(way)) is not None
    ]
    return ("way", "requests", "failed", "hit share", "goodput", "TTFT p50", "TTFT p99"), rows


def targets_table(found: dict[str, Any]) -> Table:
    ways, targets, kills, left = (found[name] for name in ("compared", "targets", "killed", "hung_up"))
    least = f"at least −{targets['difference']:.0%}"
    most = f"at most {targets['added_ttft_ms_p50']:.0f} ms"
    lost = sum(one["lost"] for one in kills.values())
    hits, goodput = (_difference(ways[f"{name}_difference"]) for name in ("hit_share", "goodput"))
    rows = [
        ("hit_share", "hit share, compared with our gateway's", least, hits),
        ("goodput", "goodput, compared with our gateway's", least, goodput),
        ("added_ttft", "added to the direct call's TTFT p50", most, _ms(ways["added_ttft_ms_p50"])),
        ("killed", "requests lost by the kills", "0", lost),
        ("hung_up", "requests aborted whose clients left", left["requests"], left["aborted"]),
    ]
    kept = {True: "yes", False: "no"}
    shown = [(what, target, value, kept[found["passed"][name]]) for name, what, target, value in rows]
    return ("", "target", "measured", "kept"), shown


def rounds_table(found: dict[str, Any]) -> Table:
    rows = []
    for way, title in WAYS.items():
        rounds = found["ways"].get(way, {}).get("rounds", [])
        if len(rounds) > 1:
            columns = (("hit_share", _share), ("goodput", _share), ("ttft_ms_p50", _ms))
            rows.append((title, *(_span([one[name] for one in rounds], show) for name, show in columns)))
    return ("way", "hit share", "goodput", "TTFT p50"), rows


def _span(values: list[float], show: Callable[[float], str]) -> str:
    return f"{show(min(values))} to {show(max(values))}"


def kills_table(found: dict[str, Any]) -> Table:
    rows = [
        (
            CLIENTS[client],
            one["requests"],
            one["in_flight"],
            one["broken"],
            one["lost"],
            None if one["slowest_ms"] is None else f"{one['slowest_ms'] / 1000:.1f} s",
            f"{one['replaced_s']:.0f} s",
        )
        for client, one in found["killed"].items()
    ]
    header = (
        "client",
        "requests",
        "at the replica when it was killed",
        "broke off in mid-answer",
        "lost",
        "slowest answer",
        "four replicas again after",
    )
    return header, rows


def finding(found: dict[str, Any]) -> str:
    ways, kills, left = found["compared"], found["killed"], found["hung_up"]
    lost = sum(one["lost"] for one in kills.values())
    hits, goodput = (_difference(ways[f"{name}_difference"]) for name in ("hit_share", "goodput"))
    return (
        f"Compared with our gateway alone, on the same load: hit share {hits}, goodput {goodput}. "
        f"{_ms(ways['added_ttft_ms_p50'])} more to the first token than the direct call takes. "
        f"{len(kills)} replicas killed, {lost} requests lost. Of {left['requests']} requests whose "
        f"clients hung up, {left['aborted']} were aborted."
    )


def _share(value: float) -> str:
    return f"{value:.1%}"


def _difference(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1%}".replace("-", "−")


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} ms"


PAGE = Page("routing", "Does the router do as well on Ray?", (RECORD,), render)
