"""`soak`: memory over events, restarts and time."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from benchmarks.cli import common
from forebay.cli.options import option
from forebay.cli.output import JsonFile
from forebay.settings import load_settings


def soak(
    *,
    hours: Annotated[float, option("Hours at rest, at the end.", min=0.0)] = 1.0,
    events: Annotated[int, option("Events before that.", min=1)] = 3_000_000,
    restarts: Annotated[int, option("Restarts of the job inside one JVM.", min=0)] = 200,
    every_s: Annotated[float, option("Seconds between two samples.", min=1.0)] = 10.0,
    garbage: Annotated[
        bool, option("Do not collect the JVM's garbage before each sample.", "--garbage")
    ] = False,
    json: JsonFile = None,
    plot: common.Plot = None,
) -> None:
    """Sample the memory of a pipeline between topics whose page is open. Exit status 1 if something grows on.

    Starts a Kafka (FOREBAY_KAFKA_HOME). The scripted engine answers at once.
    Ctrl-C reports the samples until then.
    """
    from benchmarks.soak import SoakOptions, measure_soak, soak_picture
    from forebay.pages.picture import write_picture

    common.check_report_files(json, plot)
    options = SoakOptions(hours=hours, events=events, restarts=restarts, every_s=every_s, garbage=garbage)
    with TemporaryDirectory(prefix="forebay-soak-") as work:
        found = measure_soak(options, load_settings(), Path(work), common.note)
    if found["unread"]:
        common.note(f"{found['unread']} samples could not be read: the JVM did not answer in time")
    if plot is not None:
        write_picture(plot, soak_picture(found))
    common.report(json, found, lambda: show_soak(found), passed=found["level"], complete=found["complete"])


PER = {"events": ("1,000,000 events", 1e6), "restarts": ("1,000 restarts", 1e3), "rest": ("hour", 1.0)}


def show_soak(found: dict[str, Any]) -> None:
    for part, (per, scale) in PER.items():
        samples = [sample for sample in found["samples"] if sample["part"] == part] or [None]
        ends = samples[0], samples[-1]
        common.show_table(
            (part, "first", "last", f"second half: per {per}", "95 % interval", "levels off"),
            [
                (name, *(common.digits(one and one[name], ".0f") for one in ends), *_growth(each, scale))
                for name, each in found["trends"][part].items()
            ],
        )


def _growth(each: dict[str, Any] | None, scale: float) -> tuple[str | None, str | None, str]:
    if each is None:
        return None, None, "not measured"
    slope, low, high = (f"{each[name] * scale:.3g}" for name in ("slope", "low", "high"))
    return slope, f"{low} to {high}", "yes" if each["level"] else "no"
