"""The page about scaling: policies in a simulator, pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.evaluation.page import Page, Records, Rendered, Table, origin, table
from forebay.pipeline.scaling_record import course_picture

RECORDS = ("autoscale-code.json", "autoscale-conversation.json")
GOAL = 0.99
NAMES = {
    "azure_llm_2023_code": "code completion",
    "mooncake_conversation": "conversations",
    "days": "days",
    "bursts_3x": "bursts, 3 times",
    "bursts_10x": "bursts, 10 times",
}
TARGETS = (
    "load", "boot", "SLO", "below equal cost", "of the others", "at least possible", "of the oracle",
)  # fmt: skip
HEADER = (
    "load", "boot", "SLO", "`deadline`: goodput", "cost", "oracle", "equal cost: fixed", "scaled",
    "99 %: fixed", "scaled",
)  # fmt: skip


def render(records: Records) -> Rendered:
    found = [one for name in RECORDS for one in records[name]["comparisons"]]
    return Rendered(
        tables={
            "policies": table(*policies_table(found)),
            "targets": table(TARGETS, [_targets(one) for one in found]),
            "origin": origin(records),
        },
        finding=_finding(found),
    )


def policies_table(found: Iterable[Mapping[str, Any]]) -> Table:
    return HEADER, [_row(one) for one in found]


def _row(one: Mapping[str, Any]) -> tuple[str | None, ...]:
    mine = one["policies"]["deadline"]
    equal = [_at_equal_cost(one, of_fixed=of_fixed) for of_fixed in (True, False)]
    cheapest = [_cheapest(one, of_fixed=of_fixed) for of_fixed in (True, False)]
    return (
        *_case(one),
        f"{mine['goodput']:.3f}",
        _cost(one, mine["replica_seconds"]),
        _cost(one, one["oracle_replica_seconds"]),
        *(None if each is None else f"{each['goodput']:.3f}{_suffix(each)}" for each in equal),
        *(
            None if each is None else f"{_cost(one, each['replica_seconds'])}{_suffix(each)}"
            for each in cheapest
        ),
    )


def _targets(one: Mapping[str, Any]) -> tuple[str | None, ...]:
    mine, equal, other = one["policies"]["deadline"], _at_equal_cost(one), _cheapest(one, of_fixed=False)
    oracle_s, enough = one["oracle_replica_seconds"], mine["goodput"] >= GOAL
    below = None if equal is None else 1 - mine["goodput"] / equal["goodput"]
    return (
        *_case(one),
        None if below is None else f"{max(below, 0.0):.1%}",
        f"{mine['replica_seconds'] / other['replica_seconds']:.2f}" if other and enough else None,
        f"{oracle_s / other['replica_seconds']:.2f}" if other else None,
        f"{mine['replica_seconds'] / oracle_s:.2f}" if enough else None,
    )


def _finding(found: Iterable[Mapping[str, Any]]) -> str:
    shaped = [one for one in found if one["daily"] or one["load"].startswith("bursts")]
    best = sum(
        (equal := _at_equal_cost(one)) is None
        or one["policies"]["deadline"]["goodput"] >= equal["goodput"] - 0.0005
        for one in shaped
    )
    days = [one for one in shaped if one["daily"]]
    ratios = [one["policies"]["deadline"]["oracle_ratio"] for one in days]
    fixed = [
        one["policies"]["deadline"]["replica_seconds"] / cheapest["replica_seconds"]
        for one in days
        if (cheapest := _cheapest(one, of_fixed=True))
    ]
    return (
        f"On days and bursts `deadline` has at least the goodput that any other setting or fixed fleet has "
        f"for the same cost in {best} of {len(shaped)} cases. On days it pays {min(ratios):.2f} to "
        f"{max(ratios):.2f} times what an oracle does, and {min(fixed):.2f} to {max(fixed):.2f} times the "
        f"best fixed fleet."
    )


def _case(one: Mapping[str, Any]) -> tuple[str, str, str]:
    return NAMES.get(one["load"], one["load"]), f"{one['boot_s']:g} s", f"{one['slo_s']:g} s"


def _cost(one: Mapping[str, Any], replica_seconds: float) -> str:
    return f"{replica_seconds / one['work_s']:.2f}"


def _at_equal_cost(one: Mapping[str, Any], *, of_fixed: bool | None = None) -> Mapping[str, Any] | None:
    most = one["policies"]["deadline"]["replica_seconds"] * 1.001
    points = (
        each
        for each in one["frontier"]
        if each["replica_seconds"] <= most and of_fixed in (None, each["policy"] == "fixed")
    )
    return max(points, key=lambda each: float(each["goodput"]), default=None)


def _cheapest(one: Mapping[str, Any], *, of_fixed: bool) -> Mapping[str, Any] | None:
    points = (
        each
        for each in one["frontier"]
        if (each["policy"] == "fixed") is of_fixed and each["goodput"] >= GOAL
    )
    return min(points, key=lambda each: float(each["replica_seconds"]), default=None)


def _suffix(point: Mapping[str, Any]) -> str:
    return "" if point["policy"] == "fixed" else f" (`{point['policy']}`)"


PAGE = Page("autoscale", "Which scaling policy pays least for its goodput?", RECORDS, render)


KUBERNETES, SCRIPTED = "kubernetes.json", "kubernetes-scripted.json"


def render_kubernetes(records: Records) -> Rendered:
    burst, drill = records[KUBERNETES]["burst"], records[KUBERNETES]["restarts"]
    scripted = records[SCRIPTED]["burst"]
    return Rendered(
        tables={
            "kubernetes-burst": table(*burst_table(burst)),
            "known": table(*known_table(scripted)),
            "restarts": table(*restarts_table(drill)),
            "origin": origin(records),
        },
        plots={"kubernetes.svg": course_picture(burst["course"], "a burst, and a Deployment's replicas")},
        finding=f"Ready replicas went {_levels(burst)}. {burst['answered']} of {burst['events']} events were "
        f"answered, {burst['lost']} lost, {burst['doubled']} doubled, {burst['cut_off']} asked for more than "
        f"once. The router counted a new replica after {_seconds(scripted['known_s'])}. Over "
        f"{drill['restarts']} restarts of the API server {len(drill['wrong'])} numbers of replicas were "
        f"wrong.",
    )


def burst_table(burst: Mapping[str, Any]) -> Table:
    scaled_s, routed_s = _seconds(burst["scaled_up_s"]), _seconds(burst["routed_s"])
    return ("", ""), [
        ("replicas that were ready", _levels(burst)),
        ("events", burst["events"]),
        ("answered", burst["answered"]),
        ("lost", burst["lost"]),
        ("doubled", burst["doubled"]),
        ("dead letters", burst["dead_letters"]),
        ("asked for more than once", burst["cut_off"]),
        ("from the pipeline's wish for two replicas to the Deployment's scale", scaled_s),
        ("from the new replica's being ready to its first request", routed_s),
        ("requests in the replica when it got its SIGTERM", f"{burst['at_stop']:.0f}"),
        ("requests sent to it from half a second after that on", f"{burst['sent_late']:.0f}"),
    ]


def known_table(burst: Mapping[str, Any]) -> Table:
    return ("", ""), [
        ("replicas that were ready", _levels(burst)),
        ("events", burst["events"]),
        ("answered", burst["answered"]),
        ("from a new replica's being ready to the router's counting it", _seconds(burst["known_s"])),
        ("to its first request", _seconds(burst["routed_s"])),
    ]


def restarts_table(drill: Mapping[str, Any]) -> Table:
    return ("", ""), [
        ("restarts of the API server", drill["restarts"]),
        ("numbers of replicas that were wrong at any moment", len(drill["wrong"])),
        ("patches refused, because another one had written", drill["conflicts"]),
        ("watches that had expired", drill["expired"]),
        ("restarts after which the router's list stayed wrong", drill["strayed"]),
        ("to the new scale, median", f"{drill['median_s']} s"),
        ("to the new scale, at most", f"{drill['most_s']} s"),
    ]


def _levels(burst: Mapping[str, Any]) -> str:
    return " → ".join(str(level) for level in burst["levels"])


def _seconds(found: list[Any]) -> str:
    return ", ".join(f"{seconds:.2f} s" for seconds in found) or "–"


KUBERNETES_PAGE = Page(
    "autoscale", "Do a Deployment's replicas follow a burst?", (KUBERNETES, SCRIPTED), render_kubernetes
)
