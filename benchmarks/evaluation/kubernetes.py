"""A burst on a Deployment, from one replica to two and back, and an API server that restarts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.evaluation.page import Page, Records, Rendered, origin, table
from forebay.pipeline.scaling_record import course_picture

RECORD, SCRIPTED = "kubernetes.json", "kubernetes-scripted.json"


def render(records: Records) -> Rendered:
    burst, drill = records[RECORD]["burst"], records[RECORD]["restarts"]
    scripted = records[SCRIPTED]["burst"]
    levels = _levels(burst)
    rows = [
        ("replicas that were ready", levels),
        ("events", burst["events"]),
        ("answered", burst["answered"]),
        ("lost", burst["lost"]),
        ("doubled", burst["doubled"]),
        ("dead letters", burst["dead_letters"]),
        ("asked for more than once", burst["cut_off"]),
        (
            "from the pipeline's wish for two replicas to the Deployment's scale",
            _seconds(burst["scaled_up_s"]),
        ),
        ("from the new replica's being ready to its first request", _seconds(burst["routed_s"])),
        ("requests in the replica when it got its SIGTERM", f"{burst['at_stop']:.0f}"),
        ("requests sent to it from half a second after that on", f"{burst['sent_late']:.0f}"),
    ]
    known = [
        ("replicas that were ready", _levels(scripted)),
        ("events", scripted["events"]),
        ("answered", scripted["answered"]),
        ("from a new replica's being ready to the router's counting it", _seconds(scripted["known_s"])),
        ("to its first request", _seconds(scripted["routed_s"])),
    ]
    restarts = [
        ("restarts of the API server", drill["restarts"]),
        ("numbers of replicas that were wrong at any moment", len(drill["wrong"])),
        ("patches refused, because another one had written", drill["conflicts"]),
        ("watches that had expired", drill["expired"]),
        ("restarts after which the router's list stayed wrong", drill["strayed"]),
        ("to the new scale, median", f"{drill['median_s']:.2f} s"),
        ("to the new scale, at most", f"{drill['most_s']:.2f} s"),
    ]
    return Rendered(
        tables={
            "kubernetes-burst": table(("", ""), rows),
            "known": table(("", ""), known),
            "restarts": table(("", ""), restarts),
            "origin": origin(records),
        },
        plots={"kubernetes.svg": course_picture(burst["course"], "a burst, and a Deployment's replicas")},
        finding=f"Ready replicas went {levels}. {burst['answered']} of {burst['events']} events were "
        f"answered, {burst['lost']} lost, {burst['doubled']} doubled, {burst['cut_off']} asked for more than "
        f"once. The router counted a new replica after {_seconds(scripted['known_s'])}. Over "
        f"{drill['restarts']} restarts of the API server {len(drill['wrong'])} numbers of replicas were "
        f"wrong.",
    )


def _levels(burst: Mapping[str, Any]) -> str:
    return " → ".join(str(level) for level in burst["levels"])


def _seconds(found: list[Any]) -> str:
    return ", ".join(f"{seconds:.2f} s" for seconds in found) or "–"


PAGE = Page("autoscale", "Do a Deployment's replicas follow a burst?", (RECORD, SCRIPTED), render)
