"""What the page of a run shows, part by part."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from markupsafe import Markup

from forebay.apps.base import Page
from forebay.json_numbers import dump_json, read_json
from forebay.pages.charts import Figure, Line, time_figure
from forebay.pages.render import fragment, main_of, page
from forebay.pages.units import NUMBER, SECONDS, moment
from forebay.pipeline.live.history import ENDED, History, KeyOrder, Point, duration, tiles_of
from forebay.pipeline.live.outputs import RunOutputs
from forebay.pipeline.snapshot import Snapshot
from forebay.pipeline.spec import PipelineSpec
from forebay.untrusted_text import counted

LOG = logging.getLogger("forebay")
TEMPLATE = "live.html.j2"
LEAD = "What this run does now, from its own counts and its committed results. Times are in UTC."
CHARTS_EVERY, CHARTS_S, KEYS_EVERY = 4, 4.0, 4
RESULTS_S = 1.0
"""Each drawing takes a millisecond, so results are not redrawn more often."""
VIEW_SHARE = 0.02
SHOWN_RESULTS = 30
SEARCHED_RESULTS = 2000
KEYS_OF = 50
TEXT_CHARS = 400


class LivePage:
    """`watch` may be called on one thread, everything else on another."""

    def __init__(
        self,
        spec: PipelineSpec,
        outputs: RunOutputs,
        *,
        replicas: int | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._outputs = outputs
        self._replicas = replicas
        self._clock_s = clock_s
        self._history = History()
        self._lock = threading.Lock()
        self._make = None if spec.application is None else spec.application.page()
        self._order = _order_of(spec)
        self._keys: list[str | None] = []
        self._keys_of = -1
        self._values: dict[str, Callable[[], dict[str, Any]]] = {
            "status": self._status,
            "numbers": self._numbers,
            "charts": self._charts,
            "letters": self._letters,
            "results": self._results,
            "application": self._application,
        }
        self._drawn: dict[str, tuple[int, dict[str, Any], str]] = {}
        self._results_of = 0
        self._results_due_s = 0.0
        self._view = ""
        self._view_of = -1
        self._view_version = 0
        self._view_due_s = 0.0

    def watch(self, now: Snapshot) -> None:
        with self._lock:
            self._history.add(now)

    # -- the parts

    def versions(self) -> dict[str, int]:
        with self._lock:
            history = self._history
            version, points, ended = history.version, history.points_added, history.last.state in ENDED
            each = ended or history.step_s >= CHARTS_S
        self._look_at_view(at_once=ended)
        added, now_s = self._outputs.results.added, self._clock_s()
        if added != self._results_of and (ended or now_s >= self._results_due_s):
            self._results_of, self._results_due_s = added, now_s + RESULTS_S
        found = {
            "status": version,
            "numbers": version,
            "charts": points if each else points // CHARTS_EVERY * CHARTS_EVERY,
            "letters": self._outputs.letters.added,
            "results": self._results_of,
        }
        return found if self._make is None else {**found, "application": self._view_version}

    def part(self, name: str, search: str = "") -> str:
        if search and name == "results":
            return fragment(TEMPLATE, name, **self._results(search))
        return self._draw(name, self.versions()[name])[1]

    def _draw(self, name: str, version: int) -> tuple[dict[str, Any], str]:
        if name not in self._drawn or self._drawn[name][0] != version:
            values = self._values[name]()
            self._drawn[name] = version, values, fragment(TEMPLATE, name, **values)
        return self._drawn[name][1:]

    def page(self, *, live: bool = True) -> str:
        self._look_at_view(at_once=not live)
        values: dict[str, Any] = {"view": ""}
        for name, version in self.versions().items():
            values |= self._draw(name, version)[0] if live else self._values[name]()
        return page(
            TEMPLATE,
            title=self._spec.name,
            lead=LEAD if live else "What this run has done, from its own counts and its committed results.",
            script="filter.js live.js" if live else "filter.js",
            connects=live,
            live=live,
            **values,
        )

    def _status(self) -> dict[str, Any]:
        with self._lock:
            history = self._history
            version = history.version // KEYS_EVERY
            if self._order is not None and version != self._keys_of:
                self._keys_of, self._keys = version, self._newest_keys()
            hot = history.hot_key(self._keys, self._order)
            look, status = history.status()
            one_each = self._spec.application is None
            problems = list(history.problems(hot, self._replicas, self._letters_place, one_each=one_each))
        if self._outputs.trouble:
            problems.append(self._outputs.trouble)
        if problems and look == "unknown":
            look, status = "warn", f"{status}; {counted(len(problems), 'thing')} to look at"
        return {"look": look, "status": status, "problems": problems}

    def _numbers(self) -> dict[str, Any]:
        with self._lock:
            limit = self._history.limit(
                self._keys, self._order, capacity=self._spec.capacity, subtasks=self._spec.parallelism
            )
            one_each = self._spec.application is None
            return {"tiles": list(tiles_of(self._history, one_each=one_each, limit=limit))}

    def _charts(self) -> dict[str, Any]:
        with self._lock:
            points = list(self._history.points)
        return {"figures": figures_of(points) if len(points) > 2 else ()}

    def _letters(self) -> dict[str, Any]:
        sink = self._spec.dead_letters
        found = sorted(self._outputs.causes.items(), key=lambda item: -item[1].count)
        causes = [
            (cause, each.count, [_letter(line) for line in reversed(list(each.newest))])
            for cause, each in found
        ]
        note = "No dead letters." if self._outputs.kept["letters"] else f"They go to {sink.summary()}."
        return {"causes": causes, "letters_note": note}

    def _results(self, search: str = "") -> dict[str, Any]:
        if not self._outputs.kept["results"]:
            return {"results": (), "results_note": f"Results go to {self._spec.sink.summary()}."}
        words = search.casefold().split()
        shown_now, searched = [], 0
        for line in islice(reversed(list(self._outputs.results.lines)), SEARCHED_RESULTS):
            searched += 1
            row = _row(line)
            text = f"{row.get('key')} {row.get('id')} {row.get('input')} {row.get('answer')}".casefold()
            if row and all(word in text for word in words):
                shown_now.append(row)
            if len(shown_now) >= SHOWN_RESULTS:
                break
        note = "The newest are first." if searched else "No results yet."
        if words:
            matches = counted(len(shown_now), "match", "matches")
            note = f"{matches} among the newest {counted(searched, 'result')}."
        return {"results": shown_now, "results_note": note}

    @property
    def _letters_place(self) -> str:
        kept = self._outputs.kept["letters"]
        return "examples are below" if kept else f"they go to {self._spec.dead_letters.summary()}"

    def _newest_keys(self) -> list[str | None]:
        newest = islice(reversed(list(self._outputs.results.lines)), KEYS_OF)
        return [_row(line).get("key") for line in newest]

    # -- the application's view

    def _application(self) -> dict[str, Any]:
        return {"view": Markup(self._view)}

    def _look_at_view(self, *, at_once: bool = False) -> None:
        added = self._outputs.results.added + self._outputs.letters.added
        begin_s = self._clock_s()
        if self._make is None or added == self._view_of or (begin_s < self._view_due_s and not at_once):
            return
        lines = [*self._outputs.results.lines, *self._outputs.letters.lines]
        try:
            self._view = view_of(self._make, lines)
        except Exception:
            LOG.exception("the application's view of its results cannot be made; the run continues")
            self._view = "<p>This view cannot be made; the terminal shows the error.</p>"
        self._view_of = added
        self._view_version += 1
        now_s = self._clock_s()
        self._view_due_s = now_s + (now_s - begin_s) / VIEW_SHARE


def _order_of(spec: PipelineSpec) -> KeyOrder | None:
    if spec.application is not None:
        return KeyOrder.CALLS if spec.application.needs_key else None
    if spec.ordering == "key":
        return KeyOrder.RESULTS
    return KeyOrder.SUBTASK if spec.parallelism > 1 else None


def view_of(make: Page, lines: Iterable[bytes]) -> str:
    html = main_of(make(lines))
    for level in (3, 2, 1):
        html = html.replace(f"<h{level}>", f"<h{level + 1}>").replace(f"</h{level}>", f"</h{level + 1}>")
    return html


def figures_of(points: Sequence[Point]) -> list[Figure]:
    last_s = points[-1].elapsed_s

    def line(name: str, value: Callable[[Point], float], colour: Any) -> Line:
        return Line(name, [(point.elapsed_s, value(point)) for point in points], colour)

    return [
        time_figure(
            "Events per second",
            [
                line("read", lambda point: point.read_per_s, "blue"),
                line("results", lambda point: point.results_per_s, "green"),
            ],
            last_s,
        ),
        time_figure(
            "Latency in seconds",
            [
                line("event to answer, p99", lambda point: point.event_p99_s, "red"),
                line("median", lambda point: point.event_p50_s, "blue"),
                line("one call, median", lambda point: point.call_p50_s, "gold"),
            ],
            last_s,
            SECONDS,
        ),
        time_figure(
            "In flight and waiting",
            [
                line("in flight", lambda point: point.in_flight, "blue"),
                line("waiting", lambda point: point.waiting, "violet"),
            ],
            last_s,
            NUMBER,
        ),
        time_figure(
            "Generated tokens per second", [line("", lambda point: point.tokens_per_s, "green")], last_s
        ),
    ]


def _row(line: bytes) -> dict[str, Any]:
    try:
        value = read_json(line)
        key, when = value.get("key"), value.get("time_ms")
        elapsed_s = value.get("elapsed_s") or 0.0
        notes = [moment(when)] if when is not None else []
        if elapsed_s:
            notes.append(f"answered in {duration(float(elapsed_s))}")
        return {
            "key": None if key is None else _text(key),
            "id": _text(value.get("id")),
            "input": _text(value.get("fields") or ""),
            "answer": _text(value.get("answer")),
            "note": " · ".join(notes),
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def _letter(line: bytes) -> dict[str, str]:
    value = read_json(line)
    place = [f"{name} {_text(value[name])}" for name in ("id", "key", "position") if value.get(name)]
    return {
        "detail": _text(value.get("detail")),
        "input": _text(value.get("input") or value.get("input_base64") or ""),
        "place": " · ".join(place),
    }


def _text(value: Any) -> str:
    if isinstance(value, dict) and len(value) == 1 and isinstance(next(iter(value.values())), str):
        (value,) = value.values()
    text = value if isinstance(value, str) else dump_json(value, default=str).decode()
    return text if len(text) <= TEXT_CHARS else text[: TEXT_CHARS - 1] + "…"
