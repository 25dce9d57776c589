"""Charts: lines on axes, and rows of spans, with keys that need no colour to be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from markupsafe import Markup

from forebay.pages.axes import Axis, value_axis
from forebay.pages.svg import Anchor, Colour, Drawing, circle, curve, group, joined, rect, rule, text
from forebay.pages.units import NUMBER, SECONDS, SHARE, Unit, shown

SINCE_START = "time since the start"
HEIGHT = 220.0
NAMED_ROW, NAME_LINE, NAMED_MIDDLE = 40.0, 14.0, 28.0
BAR = 16.0
MIN_ROW, MAX_ROW, MAX_HEIGHT = 3.0, 14.0, 480.0
FROM_THE_EDGE = 5.0
"""In per cent; labels so near to an end of an axis are aligned with it."""


@dataclass(frozen=True, slots=True)
class Line:
    """Without a `name` it is not in the key, without points in the key only. `steps`: each value holds until
    the next point."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: Colour = "blue"
    look: Literal["line", "dash", "dots"] = "line"
    steps: bool = False
    marks: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """Spans of one colour: (row, from, to)."""

    name: str
    colour: Colour
    spans: Sequence[tuple[float, float, float]]


@dataclass(frozen=True, slots=True)
class Bar:
    """`words`: the written value. `pale`: it counts less, such as an invalid one."""

    name: str
    value: float
    words: str
    colour: Colour = "blue"
    pale: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    x: float
    y: float
    words: str
    ring: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Shapes around the middle of a row, with a name above them, aligned with their start or end."""

    shapes: Sequence[Markup]
    name: str = ""
    begin: float = 0.0
    end: float = 100.0
    place: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Key:
    words: str
    colour: Colour | None
    look: str = "line"


@dataclass(frozen=True, slots=True)
class Table:
    """The first column names the rows. `name`: for screen readers."""

    name: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True, slots=True)
class Figure:
    """`data`: the chart's numbers as a folded table."""

    title: str
    drawing: Drawing
    keys: Sequence[Key] = ()
    data: Table | None = None


def line_figure(
    title: str,
    lines: Sequence[Line],
    *,
    label: str,
    x_name: str,
    x_unit: Unit,
    y_unit: Unit,
    log_x: bool = False,
    log_y: bool = False,
    x_high: float | None = None,
    y_low: float = 0.0,
    y_high: float | None = None,
    notes: Sequence[Note] = (),
    room: float = 0.04,
    data: Table | None = None,
) -> Figure:
    """Lines on axes; values are scaled to their units here.

    `room`: the space beyond the largest value, as a share of it.
    """

    def scaled(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(x * x_unit.scale, y * y_unit.scale) for x, y in points]

    drawn = [(line, scaled(line.points)) for line in lines if line.points]
    everything = [point for _, points in drawn for point in points]
    xs = [*(x for x, _ in everything), *([] if x_high is None else [x_high * x_unit.scale])]
    x_axis = value_axis(xs, 0.0, 100.0, log=log_x, room=room)
    if x_high is not None and not x_axis.log:
        x_axis = Axis(0.0, max(x_high * x_unit.scale, 1e-9))
    y_axis = value_axis((y for _, y in everything), HEIGHT, 0.0, log=log_y)
    if y_high is not None:
        y_axis = Axis(y_low * y_unit.scale, y_high * y_unit.scale, HEIGHT, 0.0)
    shapes: list[Markup] = [*_side(y_axis, y_unit), *_below(x_axis, _named(x_name, x_unit, log=x_axis.log))]
    for line, points in reversed(drawn):
        places = [(x_axis.at(x), y_axis.at(y)) for x, y in points]
        shapes.append(curve(places, f"{line.colour} {line.look}", steps=line.steps))
        if line.marks:
            shapes += [circle(x, y, 3.5, line.colour) for x, y in places]
    for note in notes:
        shapes += _note(note, x_axis.at(note.x * x_unit.scale), y_axis.at(note.y * y_unit.scale))
    keys = [Key(one.name, one.colour, one.look) for one in lines if one.name]
    return Figure(title, Drawing(label, HEIGHT, joined(shapes), "axes"), keys, data)


share_figure = partial(line_figure, y_unit=SHARE, y_high=1.0)


def time_figure(
    title: str,
    lines: Sequence[Line],
    duration_s: float,
    unit: Unit = NUMBER,
    *,
    label: str = "",
    notes: Sequence[Note] = (),
    data: Table | None = None,
) -> Figure:
    """Values over the time of a run; of dots, the vertical axis may be logarithmic."""
    most = shown(max((y for line in lines for _, y in line.points), default=0.0), unit)
    return line_figure(
        title,
        lines,
        label=label or f"{title} over {shown(duration_s)} s: at most {most}",
        x_name=SINCE_START,
        x_unit=SECONDS,
        y_unit=unit,
        x_high=duration_s,
        log_y=any(line.look == "dots" for line in lines),
        notes=notes,
        data=data,
    )


def span_figure(
    title: str,
    layers: Sequence[Layer],
    rows: int,
    *,
    start: float,
    end: float,
    unit: Unit,
    label: str,
    x_name: str = SINCE_START,
    names: Sequence[str] = (),
    data: Table | None = None,
) -> Figure:
    low = start * unit.scale
    axis = Axis(low, max(end * unit.scale, low + 1e-9))
    row_height = None if names else min(max(MAX_HEIGHT / max(rows, 1), MIN_ROW), MAX_ROW)
    height = BAR if row_height is None else row_height * 0.82
    bars: list[list[Markup]] = [[] for _ in range(rows)]
    for layer in layers:
        for row, began, ended in layer.spans:
            left, right = axis.at(began * unit.scale), axis.at(ended * unit.scale)
            # A span without length is still visible.
            width = max(right - left, 0.1)
            bars[int(row)].append(rect(left, width, -height / 2, height, layer.colour))
    drawn = [Row(shapes, names[number] if names else "") for number, shapes in enumerate(bars)]
    drawing = rows_drawing(drawn, axis, _named(x_name, unit), label, row_height=row_height)
    return Figure(title, drawing, [Key(one.name, one.colour, "block") for one in layers], data)


def bar_figure(
    title: str,
    bars: Sequence[Bar],
    *,
    x_name: str,
    label: str,
    marks: Sequence[float] = (),
) -> Figure:
    """A bar in its own row for each value, with the value after its name. `marks`: values to compare."""
    axis = value_axis([bar.value for bar in bars], 0.0, 100.0)
    rows = []
    for bar in bars:
        look = f"{bar.colour} pale" if bar.pale else bar.colour
        name = f"{bar.name}: {bar.words}"
        rows.append(Row((rect(0, max(axis.at(bar.value), 0.2), -BAR / 2, BAR, look),), name))
    bottom = NAMED_ROW * len(rows)
    lines = [rule(axis.at(mark), axis.at(mark), 0, bottom, "link soft") for mark in marks]
    name = _named(x_name, NUMBER, log=axis.log)
    return Figure(title, rows_drawing(rows, axis, name, label, behind=lines))


def rows_drawing(
    rows: Sequence[Row],
    axis: Axis,
    axis_name: str,
    label: str,
    *,
    behind: Sequence[Markup] = (),
    row_height: float | None = None,
) -> Drawing:
    """Places on the axis are per cent. `row_height`: of rows without names."""
    height = NAMED_ROW if row_height is None else row_height
    bottom = height * len(rows)
    shapes: list[Markup] = [text(0, -26, axis_name, look="soft")]
    for value, words in axis.ticks():
        x = axis.at(value)
        shapes += [rule(x, x, 0, bottom), text(x, -8, words, _anchor(x), look="soft")]
    shapes += behind
    for number, row in enumerate(rows):
        inside = list(row.shapes)
        if row_height is None:
            left = row.begin + row.end <= 100  # The side with more room.
            place = row.begin if left else row.end
            y = NAME_LINE - NAMED_MIDDLE
            inside.insert(0, text(place, y, row.name, "start" if left else "end", look="halo"))
        y = row_middle(number) if row_height is None else height * (number + 0.5)
        shapes.append(group(y, inside, place=row.place, title=row.title))
    return Drawing(label, bottom, joined(shapes), "rows")


def row_middle(number: int) -> float:
    return NAMED_ROW * number + NAMED_MIDDLE


def _below(axis: Axis, name: str) -> Iterator[Markup]:
    yield rule(axis.start, axis.end, HEIGHT, HEIGHT, "axis")
    for value, words in axis.ticks():
        x = axis.at(value)
        yield rule(x, x, HEIGHT, HEIGHT + 5, "axis")
        yield text(x, HEIGHT + 19, words, "end" if x > 100 - FROM_THE_EDGE else "middle")
    yield text(50, HEIGHT + 38, name, "middle", look="soft")


def _side(axis: Axis, unit: Unit) -> Iterator[Markup]:
    for value, words in axis.ticks():
        y = axis.at(value)
        yield rule(0, 100, y, y)
        yield text(0, y + 4, words + ("%" if unit.name == "%" else ""), "end", dx=-7)


def _anchor(x: float) -> Anchor:
    return "start" if x < FROM_THE_EDGE else "end" if x > 100 - FROM_THE_EDGE else "middle"


def _named(name: str, unit: Unit, *, log: bool = False) -> str:
    words = f"{name}, {unit.name}" if unit.name else name
    return f"{words} (logarithmic)" if log else words


def _note(note: Note, x: float, y: float) -> Iterable[Markup]:
    if note.ring:
        yield circle(x, y, 9, "ink")
    yield circle(x, y, 3, "ink")
    below = min(y + (14 if y < 9 else 20), HEIGHT - 4)
    yield text(x, below, note.words, "end" if x > 85 else "start", dx=-9 if x > 85 else 9, look="halo")
