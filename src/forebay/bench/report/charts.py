"""A report's charts: lines on axes in SVG, with names and units that need no colour."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forebay.apps.page import Html, element, joined, path, svg

WIDTH, HEIGHT = 540.0, 280.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 12.0, 52.0
MOST_TICKS = 6
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
LEAST_SHOWN = 0.0005
LEAST_SPAN = 1e-300
LOG_FROM = 30.0
"""An axis is logarithmic if its largest value is this many times its smallest."""

STYLE = """
.charts{display:grid;align-items:end;
grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:26px 32px}
figure{margin:14px 0 0;min-width:0}figcaption{margin:0 0 4px}figcaption b{margin-right:8px}
figure svg{width:100%}.wide svg{max-width:100%}
.key{white-space:nowrap;margin-right:14px;color:var(--soft);font-size:13px}
.key i{display:inline-block;width:16px;height:0;border-top:3px solid;margin-right:5px;vertical-align:middle}
.key.block i{height:10px;border-top:10px solid;width:14px}.key.dash i{border-top-style:dashed}
.ka{color:var(--a)}.kb{color:var(--b)}.kc{color:var(--c)}.ks{color:var(--soft)}.kf{color:var(--faint)}.ke{color:var(--e)}
.key b{font-weight:400;color:var(--soft);margin:0}
svg .axis{stroke:var(--soft)}svg .line{fill:none;stroke-width:2;stroke-linejoin:round}
svg .dash{stroke-dasharray:5 4}svg .halo{paint-order:stroke;stroke:var(--back);stroke-width:4px}
svg .mark{fill:var(--back);stroke-width:2}
:root{--faint:#8497a7}@media(prefers-color-scheme:dark){:root{--faint:#66788a}}
details{margin:4px 0}summary{cursor:pointer;color:var(--soft);font-size:13px}
@media(max-width:600px){figure svg text{font-size:18px}figure.wide svg text{font-size:30px}}
"""


MOST_SPAN = 1e6
"""The largest ratio that it shows; smaller values are drawn at its end."""


@dataclass(frozen=True, slots=True)
class Unit:
    name: str
    scale: float = 1.0


NUMBER, SECONDS, SHARE = Unit(""), Unit("s"), Unit("%", 100.0)
MILLISECONDS = Unit("ms", 1000.0)
"""The unit of all times of a table, so that its rows are comparable."""


def time_unit(most_s: float) -> Unit:
    return Unit("s") if most_s >= 2 else MILLISECONDS if most_s >= 0.002 else Unit("µs", 1e6)


def shown(value: float, unit: Unit | None = None, *, digits: int = 3) -> str:
    """A value in its unit with some significant digits: `1,230 ms`, `0.42 s`."""
    scaled = value * (unit.scale if unit else 1.0)
    if not math.isfinite(scaled):
        words = "–"
    elif abs(scaled) < LEAST_SHOWN:
        words = "0"
    else:
        places = max(0, digits - 1 - math.floor(math.log10(abs(scaled))))
        words = f"{round(scaled, places):,.{min(places, 3)}f}"
        words = words.rstrip("0").rstrip(".") if "." in words else words
    return f"{words} {unit.name}" if unit and unit.name else words


@dataclass(frozen=True, slots=True)
class Axis:
    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        share = min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round values on the axis, few enough for their labels not to touch."""
        if not self.log:
            return linear_ticks(self.low, self.high)
        decades = math.log10(self.high / self.low)
        digits = (1, 2, 5) if decades < 2.2 else (1, 3) if decades < 3 else (1,)
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        found = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
        found = [value for value in found if self.low * 0.999 <= value <= self.high * 1.001]
        return found[:: -(-len(found) // (MOST_TICKS + 1)) or 1]


def linear_ticks(low: float, high: float) -> list[float]:
    span = high - low
    if not span > LEAST_SPAN:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / MOST_TICKS))
    step = next(power * digit for digit in STEPS if span / (power * digit) <= MOST_TICKS)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def value_axis(
    values: Iterable[float], start: float, end: float, *, log: bool = False, room: float = 0.04
) -> Axis:
    """An axis over all values, from 0; with `log`, logarithmic if they differ much."""
    found = [value for value in values if math.isfinite(value)]
    most = max(found, default=0.0)
    least = min((value for value in found if value > 0), default=0.0)
    least = max(least, most / MOST_SPAN)
    if log and least > 0 and most / least >= LOG_FROM:
        return Axis(least, most * (most / least) ** room, start, end, log=True)
    return Axis(0.0, most * (1 + room) if most > 0 else 1.0, start, end)


@dataclass(frozen=True, slots=True)
class Line:
    """`colour`: a name of `KEYS`. `steps`: each value holds until the next point."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str = "a"
    dashed: bool = False
    steps: bool = False
    marks: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """A word at a point."""

    x: float
    y: float
    words: str
    ring: bool = False


COLOURS = {
    "a": "var(--a)",
    "b": "var(--b)",
    "c": "var(--c)",
    "s": "var(--soft)",
    "f": "var(--faint)",
    "e": "var(--e)",
}


def key(name: str, colour: str, *, dashed: bool = False, block: bool = False) -> Html:
    kind = f"key k{colour}{' dash' if dashed else ''}{' block' if block else ''}"
    return element("span", element("i"), element("b", name), class_=kind)


def figure(
    title: str, drawing: Html, *, keys: Iterable[Html] = (), data: Html | None = None, wide: bool = False
) -> Html:
    """A chart under its title; `data`: its numbers as a folded table."""
    folded = None if data is None else element("details", element("summary", "the numbers"), data)
    caption = element("figcaption", element("b", title), *keys)
    return element("figure", caption, drawing, folded, class_="wide" if wide else None)


def chart(
    lines: Sequence[Line],
    *,
    label: str,
    x_name: str,
    x_unit: Unit,
    y_unit: Unit,
    log_x: bool = False,
    log_y: bool = False,
    x_high: float | None = None,
    y_high: float | None = None,
    dots: Sequence[tuple[float, float]] = (),
    notes: Sequence[Note] = (),
    room: float = 0.04,
) -> Html:
    """Lines on axes.

    `label` describes the chart for screen readers. Values of `x` and `y` are scaled to their units here.
    `room`: how much further the axis below reaches, as a share of itself.
    """

    def scaled(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(x * x_unit.scale, y * y_unit.scale) for x, y in points]

    drawn = [(line, scaled(line.points)) for line in lines]
    specks = scaled(dots)
    everything = [point for _, points in drawn for point in points] + specks
    xs = [*(x for x, _ in everything), *([] if x_high is None else [x_high * x_unit.scale])]
    x_axis = value_axis(xs, LEFT, WIDTH - RIGHT, log=log_x, room=room)
    if x_high is not None and not x_axis.log:
        x_axis = Axis(0.0, max(x_high * x_unit.scale, 1e-9), LEFT, WIDTH - RIGHT)
    y_axis = value_axis((y for _, y in everything), HEIGHT - BOTTOM, TOP, log=log_y)
    if y_high is not None:
        y_axis = Axis(0.0, y_high * y_unit.scale, HEIGHT - BOTTOM, TOP)
    return svg(
        WIDTH,
        HEIGHT,
        *beside(y_axis, x_axis, y_unit),
        *below(x_axis, y_axis.start, _named(x_name, x_unit, log=x_axis.log)),
        _specks([(x_axis.at(x), y_axis.at(y)) for x, y in specks]),
        *(_line(line, points, x_axis, y_axis) for line, points in drawn),
        *(_note(note, x_axis.at(note.x * x_unit.scale), y_axis.at(note.y * y_unit.scale)) for note in notes),
        label=label,
    )


def below(x_axis: Axis, bottom: float, name: str, rows: tuple[float, float] = (21, 44)) -> Iterable[Html]:
    """The axis below a chart: its line, round values and name."""
    yield element("line", x1=x_axis.start, x2=x_axis.end, y1=bottom, y2=bottom, class_="axis")
    for value in x_axis.ticks():
        x = round(x_axis.at(value), 1)
        yield element("line", x1=x, x2=x, y1=bottom, y2=bottom + 5, class_="axis")
        anchor = "end" if x > x_axis.end - 16 else "middle"
        yield element("text", shown(value), x=x, y=round(bottom + rows[0], 1), text_anchor=anchor)
    middle = (x_axis.start + x_axis.end) / 2
    yield element("text", name, x=middle, y=round(bottom + rows[1], 1), text_anchor="middle", class_="soft")


def beside(y_axis: Axis, x_axis: Axis, unit: Unit) -> Iterable[Html]:
    """Round values at the side of a chart, with lines across it."""
    for value in y_axis.ticks():
        y = round(y_axis.at(value), 1)
        words = shown(value) + ("%" if unit.name == "%" else "")
        yield element("line", x1=x_axis.start, x2=x_axis.end, y1=y, y2=y, class_="grid")
        yield element("text", words, x=x_axis.start - 7, y=round(y + 4, 1), text_anchor="end")


def rows_chart(
    spans: dict[str, list[tuple[float, float, float]]],
    rows: int,
    *,
    start: float,
    end: float,
    unit: Unit,
    label: str,
    x_name: str = "time since the start",
) -> Html:
    """Bars in rows over time: of each colour (row, from, to)."""
    width, row_height = 1080.0, min(max(480.0 / max(rows, 1), 3.0), 14.0)
    bottom = TOP + rows * row_height
    low = start * unit.scale
    x_axis = Axis(low, max(end * unit.scale, low + 1e-9), RIGHT, width - RIGHT)
    bars = []
    for colour, own in spans.items():
        steps: list[tuple[str, tuple[float, ...]]] = []
        for row, began, ended in own:
            left, right = x_axis.at(began * unit.scale), x_axis.at(ended * unit.scale)
            steps.append(("M", (left, TOP + (row + 0.5) * row_height)))
            # A bar without length is still visible.
            steps.append(("H", (max(right, left + 0.8),)))
        bars.append(path(steps, stroke=COLOURS[colour], stroke_width=f"{row_height * 0.82:.2f}", fill="none"))
    return svg(
        width,
        bottom + 76,
        *(
            element("line", x1=x, x2=x, y1=TOP, y2=bottom, class_="grid")
            for x in (round(x_axis.at(value), 1) for value in x_axis.ticks())
        ),
        *bars,
        *below(x_axis, bottom, _named(x_name, unit), (31, 68)),
        label=label,
    )


def _named(name: str, unit: Unit, *, log: bool = False) -> str:
    said = f"{name}, {unit.name}" if unit.name else name
    return f"{said} (logarithmic)" if log else said


def _line(line: Line, points: Sequence[tuple[float, float]], x_axis: Axis, y_axis: Axis) -> Html | None:
    if not points:
        return None
    steps: list[tuple[str, tuple[float, ...]]] = []
    for number, (x, y) in enumerate(points):
        place = (x_axis.at(x), y_axis.at(y))
        if number and line.steps:
            steps.append(("H", (place[0],)))
            steps.append(("V", (place[1],)))
        else:
            steps.append(("L" if number else "M", place))
    kind = "line dash" if line.dashed else "line"
    colour = COLOURS[line.colour]
    marks = [_mark(x_axis.at(x), y_axis.at(y), colour) for x, y in points] if line.marks else []
    return joined([path(steps, class_=kind, stroke=colour), *marks])


def _mark(x: float, y: float, colour: str, radius: float = 3.5) -> Html:
    return element("circle", cx=round(x, 1), cy=round(y, 1), r=radius, stroke=colour, class_="mark")


def _specks(places: Sequence[tuple[float, float]]) -> Html | None:
    if not places:
        return None
    steps = [step for x, y in places for step in (("M", (x, y)), ("h", (0.1,)))]
    return path(steps, stroke="var(--a)", stroke_width=3.2, stroke_linecap="round", stroke_opacity=0.7)


def _note(note: Note, x: float, y: float) -> Html:
    left = round(x + 9, 1)
    words = element(
        "text",
        note.words,
        x=left,
        y=round(min(y + (14 if y < TOP + 9 else 20), HEIGHT - BOTTOM - 4), 1),
        class_="halo",
    )
    ring = _mark(x, y, "var(--ink)", 9) if note.ring else None
    return joined([ring, _mark(x, y, "var(--ink)", 3), words])


def table(name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """A table whose first column names the rows. `name`: its name for screen readers."""
    head = element("tr", *(element("th", name, scope="col") for name in header))
    body = [
        element("tr", element("th", first, scope="row"), *(element("td", each) for each in rest))
        for first, *rest in rows
    ]
    return scrolled(name, element("table", element("thead", head), element("tbody", *body)))


def scrolled(name: str, content: Html) -> Html:
    """Content that may be wider than a phone; the keyboard scrolls it, too."""
    return element("div", content, class_="scroll", tabindex="0", role="group", aria_label=name)
