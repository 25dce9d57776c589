"""A burst on real vLLM, from no replica to two and back."""

from __future__ import annotations

from benchmarks.evaluation.page import Page, Records, Rendered, origin, table
from forebay.pipeline.scaling_record import course_picture

RECORD = "scaling.json"


def render(records: Records) -> Rendered:
    found = records[RECORD]
    levels = " → ".join(str(level) for level in found["levels"])
    boots = " and ".join(f"{seconds:.0f} s" for seconds in found["boots_s"])
    rows = [
        ("replicas that were ready", levels),
        ("events", found["events"]),
        ("answered", found["answered"]),
        ("lost", found["lost"]),
        ("doubled", found["doubled"]),
        ("dead letters", found["dead_letters"]),
        ("asked for more than once", found["cut_off"]),
        ("boots took", boots),
        ("first answer, from the first event on", f"{found['first_answer_s']:.0f} s"),
        ("last answer, from the burst's first event on", f"{found['burst_done_s']:.0f} s"),
        ("no replica left, from the first event on", f"{found['ended_s']:.0f} s"),
    ]
    return Rendered(
        tables={"local-burst": table(("", ""), rows), "origin": origin(records)},
        plots={"scaling.svg": course_picture(found["course"], "a burst, and the replicas")},
        finding=f"Ready replicas went {levels}. {found['answered']} of {found['events']} events were "
        f"answered, {found['lost']} lost, {found['doubled']} doubled, "
        f"{found['cut_off']} asked for more than once.",
    )


PAGE = Page("autoscale", "Do replicas follow a burst?", (RECORD,), render)
