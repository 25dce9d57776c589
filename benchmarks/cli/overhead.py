"""Commands that measure what Forebay adds to the engine: time, processor, memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import orjson
from rich.text import Text

from benchmarks.cli import common
from forebay.cli.options import option
from forebay.cli.output import JsonFile, errors_console, print_line, results_console
from forebay.errors import SettingError

if TYPE_CHECKING:
    from benchmarks.cost import Cost, LoadCost


def overhead(
    *,
    engine: Annotated[str, option("`fake`, or the URL of a real engine.")] = "fake",
    events: Annotated[
        int | None, option("With --engine's URL: number of events; without it 640.", min=1)
    ] = None,
    in_flight: Annotated[
        int | None, option("With --engine's URL: requests in flight; without it 32.", min=1)
    ] = None,
    quick: Annotated[bool, option("Shorter parts.", "--quick")] = False,
    page: Annotated[bool, option("Instead: compare a run whose page is open with one without.")] = False,
    traces: Annotated[
        bool, option("Instead: compare a run that sends traces of 1 % of the events with one without.")
    ] = False,
    json: JsonFile = None,
    plot: common.Plot = None,
) -> None:
    """Compare Forebay with the engine alone and with PyFlink's AsyncFunction, in one run."""
    from benchmarks.additions import AdditionOptions, measure_page, measure_traces
    from benchmarks.overhead import OverheadOptions, measure_overhead
    from benchmarks.picture import added_picture
    from forebay.pages.picture import write_picture

    common.check_report_files(json, plot)
    real = engine != "fake"
    sizes = {"--events": events, "--in-flight": in_flight}
    addition = "--page" if page else "--traces" if traces else None
    for name in [name for name, value in sizes.items() if value is not None and (addition or not real)]:
        raise SettingError(
            f"{name}: expected --engine URL and no --page or --traces with it; other parts have fixed sizes"
        )
    if page and traces:
        raise SettingError("--traces: expected no --page with it; they are compared one at a time")
    if addition:
        if real or plot is not None:
            raise SettingError(
                f"{addition}: expected no --engine and no --plot with it; it has a scripted engine"
            )
        measure = measure_page if page else measure_traces
        compared = measure(AdditionOptions(seconds=4.0) if quick else AdditionOptions(), common.note)
        common.report(json, compared, lambda: results_console().print_json(orjson.dumps(compared).decode()))
        return
    console = errors_console()
    with console.status("starting") as status:

        def show_part(part: str) -> None:
            status.update(Text(part))
            if not console.is_terminal:
                print_line(console, part)

        options = OverheadOptions(engine=engine, quick=quick, events=events or 640, capacity=in_flight or 32)
        found = measure_overhead(options, show_part, lambda figures: print_line(console, figures))
    if plot is not None:
        lines = {name: part["added_ms"] for name, part in found.items() if _is_system(part)}
        title = "95 % of calls 50 ms, 5 % 2 s; 100 events/s" if not real else engine
        write_picture(plot, added_picture(lines, title))
    common.report(json, found, lambda: _show_overhead(found))


def _show_overhead(found: dict[str, Any]) -> None:
    _show_systems("", found)
    for name, part in found.items():
        if name == "cost":
            common.show_table(
                ("events/s", "of a core", "processor/event, ms", "memory"),
                (
                    (
                        f"{load['events_per_s']:.0f}",
                        f"{load['cores']:.1%}",
                        common.digits(load["ms_per_event"], ".2f"),
                        f"{sum(load['memory_mb'].values()):.0f} MB",
                    )
                    for load in part["loads"]
                ),
                "a run over a feed",
            )
        elif isinstance(part, dict) and any(_is_system(inner) for inner in part.values()):
            _show_systems(name, part)
        elif isinstance(part, dict) and not _is_system(part):
            results_console().print_json(orjson.dumps({name: part}).decode())


def _is_system(part: Any) -> bool:
    return isinstance(part, dict) and "added_ms_p50" in part


def _show_systems(title: str, found: dict[str, Any]) -> None:
    columns = {
        "events/s": ("events_per_s", ".1f"),
        "tokens/s": ("tokens_per_s", ".0f"),
        "added p50 ms": ("added_ms_p50", ".1f"),
        "p99 ms": ("added_ms_p99", ".1f"),
        "checkpoint p99 ms": ("checkpoint_ms_p99", ".0f"),
        "in flight": ("in_flight_mean", ".1f"),
    }
    common.show_table(
        ("system", *columns),
        (
            (name, *(common.digits(part[figure], form) for figure, form in columns.values()))
            for name, part in found.items()
            if _is_system(part)
        ),
        title,
    )


PARTS = {
    "jit": "JVM: compilers",
    "memory": "JVM: garbage collector",
    "flink": "Flink's own threads",
    "source": "source",
    "operator": "operator",
    "calls": "calls (event loop, HTTP)",
    "client": "Python that started the JVM",
    "command": "forebay run",
}
OUTSIDE = {"engine": "scripted engine", "source": "scripted feed"}
MEMORY = {"jvm": "JVM", "client": "Python that started it", "command": "forebay run"}


def cost(*, quick: common.Quick = False, json: JsonFile = None) -> None:
    """Measure the processor time and memory of each part of a run, from idle to its highest rate; takes
    minutes."""
    from benchmarks.cost import QUICK, CostOptions, cost_document, measure_cost

    common.check_report_files(json)
    found = measure_cost(QUICK if quick else CostOptions(), common.note)
    common.report(json, cost_document(found), lambda: show_cost(found))


def show_cost(found: Cost) -> None:
    """The figures as a table: shares of a core if idle, else milliseconds per event."""

    def used(load: LoadCost, processor_s: float) -> str:
        per_event = load.ms_per_event(processor_s)
        return f"{processor_s / load.seconds:.2%}" if per_event is None else f"{per_event:.2f} ms"

    rows = {
        name: [used(load, load.processor_s[part]) for load in found.loads] for part, name in PARTS.items()
    }
    rows["all of Forebay"] = [used(load, sum(load.processor_s.values())) for load in found.loads]
    for part, name in OUTSIDE.items():
        rows[f"outside: {name}"] = [used(load, load.outside_s[part]) for load in found.loads]
    for part, name in MEMORY.items():
        rows[f"memory: {name}"] = [f"{load.memory_mb[part]:.0f} MB" for load in found.loads]
    rows["memory: all"] = [f"{sum(load.memory_mb.values()):.0f} MB" for load in found.loads]
    heads = [
        "idle, of a core" if each.rate_per_s == 0 else f"{each.events_per_s:.4g}/s" for each in found.loads
    ]
    common.show_table(("processor, per event", *heads), ((name, *row) for name, row in rows.items()))
    print_line(
        results_console(),
        f"first request after {found.first_request_s:.1f} s; {found.cores} cores, {found.processor}",
    )


def gateway(
    *,
    rate: Annotated[float, option("Requests a second.", min=1)] = 100.0,
    rounds: Annotated[int, option("Rounds each way.", min=1)] = 5,
    seconds: Annotated[float, option("Length of a round.", min=1)] = 6.0,
    hostile: Annotated[
        bool, option("Instead: compare with and without a hostile client.", "--hostile")
    ] = False,
    attack: Annotated[
        list[str] | None, option("With --hostile: one way to be hostile; may be repeated. Default: all.")
    ] = None,
    users: Annotated[
        int | None, option("Instead: this many users at once, on a gateway that has just started.", min=1)
    ] = None,
    engine: Annotated[str | None, option("With --users: URL of a real engine.")] = None,
    model: Annotated[str, option("With --engine: its model.")] = "fake",
    kv_tokens: Annotated[
        int, option("With --users: KV cache that the scripted engine reports, as vLLM does.", min=0)
    ] = 0,
    json: JsonFile = None,
) -> None:
    """Compare TTFT with and without the gateway, in turn. Exit status 1 if it adds more than promised."""
    from benchmarks.gateway import GatewayOptions, UsersOptions, measure_gateway, measure_users
    from benchmarks.hostile import WAYS, measure_hostile

    common.check_report_files(json)
    common.check_known("--attack", attack, WAYS)
    options = GatewayOptions(rate_per_s=rate, rounds=rounds, seconds=seconds)
    if users is not None:
        found = measure_users(
            UsersOptions(users=users, rounds=rounds, url=engine, model=model, kv_tokens=kv_tokens),
            common.note,
        )
    elif hostile:
        found = measure_hostile(options, common.note, ways=attack or tuple(WAYS))
    else:
        found = measure_gateway(options, common.note)
    show = _show_users if users is not None else _show_hostile if hostile else _show_gateway
    common.report(json, found, lambda: show(found), passed=found["passed"])


def _quantiles(found: dict[str, Any], way: str, figures: Sequence[str], per: float = 1.0) -> Iterator[str]:
    return (f"{found[f'{way}_{name}_{q}'] / per:.2f}" for name in figures for q in ("p50", "p99"))


def _show_users(found: dict[str, Any]) -> None:
    times = ("first_ms", "whole_ms")
    common.show_table(
        ("way", "answers", "refused", "first token p50 s", "p99 s", "answer p50 s", "p99 s"),
        (
            (way, found[f"{way}_answers"], found[f"{way}_refused"], *_quantiles(found, way, times, per=1000))
            for way in ("direct", "gateway")
        ),
    )
    print_line(results_console(), f"first token p50: {found['ratio']:.2f} times that of the engine alone")


def _show_hostile(found: dict[str, Any]) -> None:
    places = {"alone_ms_{}": 1, "attacked_ms_{}": 1, "{}_ratio": 2}
    common.show_table(
        ("hostile client", "p50 ms", "attacked", "ratio", "p99 ms", "attacked", "ratio", "lost"),
        (
            (
                way,
                *(
                    f"{of[name.format(q)]:.{digits}f}"
                    for q in ("p50", "p99")
                    for name, digits in places.items()
                ),
                f"{of['lost']} of {of['requests']}",
            )
            for way, of in found["ways"].items()
        ),
    )


def _show_gateway(found: dict[str, Any]) -> None:
    common.show_table(
        ("way", "TTFT p50 ms", "p99 ms", "latency p50 ms", "p99 ms"),
        ((way, *_quantiles(found, way, ("ttft_ms", "latency_ms"))) for way in ("direct", "gateway", "added")),
    )
