"""Charts: text keeps its size, everything is inside, and lines without points are in the key only."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.pages.axes import Axis
from forebay.pages.charts import (
    HEIGHT,
    LEAST_ROW,
    NAMED_ROW,
    Layer,
    Line,
    Note,
    Row,
    line_figure,
    row_middle,
    rows_drawing,
    span_figure,
)
from forebay.pages.drawing import Curve, Group, Rect, Text, curve
from forebay.pages.render import environment
from forebay.pages.units import NUMBER, SECONDS

POINTS = st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)), max_size=20)


@given(POINTS, st.booleans(), st.booleans())
def test_any_line_is_inside_its_chart(points: list[tuple[float, float]], log: bool, steps: bool) -> None:
    figure = line_figure(
        "title",
        [Line("one", points, steps=steps, marks=True), Line("without points", (), dashed=True)],
        label="label",
        x_name="x",
        x_unit=SECONDS,
        y_unit=NUMBER,
        log_x=log,
        log_y=log,
        dots=points,
        notes=[Note(*point, "note") for point in points[:3]],
    )
    assert [key.words for key in figure.keys] == ["one", "without points"]
    curves = [shape for shape in figure.drawing.shapes if isinstance(shape, Curve)]
    assert len(curves) == (2 if points else 0)
    for shape in figure.drawing.shapes:
        if isinstance(shape, Text):
            assert 0 <= shape.x <= 100
            assert -20 < shape.y <= HEIGHT + 40


def test_a_path_has_any_number_of_points() -> None:
    path = curve([(0, 0.04), *((x / 100, 1.25) for x in range(5000))], "blue").path
    assert path.startswith("M0 0L0 1.2L0 1.2")
    assert path.endswith("L500 1.2")
    assert curve([(0, 1), (1, 2), (2, 3)], "blue", steps=True).path == "M0 1H10V2H20V3"
    module = environment().get_template("drawing.html.j2").module
    assert path in module.shapes([curve([(0, 0.04), *((x / 100, 1.25) for x in range(5000))], "blue")])


def test_spans_are_visible_however_short_they_are() -> None:
    figure = span_figure(
        "title",
        [Layer("a", "blue", [(0, 1.0, 1.0), (1, 0.0, 2.0)]), Layer("b", "red", [])],
        300,
        start=0.0,
        end=2.0,
        unit=SECONDS,
        label="label",
    )
    assert [key.words for key in figure.keys] == ["a", "b"]
    rows = [shape for shape in figure.drawing.shapes if isinstance(shape, Group)]
    assert len(rows) == 300
    (short,), (long,) = rows[0].shapes, rows[1].shapes
    assert isinstance(short, Rect)
    assert isinstance(long, Rect)
    assert (short.x, short.width) == (50, 0.1)
    assert (long.x, long.width) == (0, 100)
    assert figure.drawing.height >= 300 * LEAST_ROW


def test_a_name_is_on_the_side_with_more_room() -> None:
    rows = [Row((), "early", 10, 20), Row((), "late", 80, 95), Row((), "long", 2, 97)]
    drawing = rows_drawing(rows, Axis(0, 1), "x", "label")
    groups = [shape for shape in drawing.shapes if isinstance(shape, Group)]
    names = [group.shapes[0] for group in groups]
    assert [(name.x, name.anchor) for name in names if isinstance(name, Text)] == [
        (10, "start"),
        (95, "end"),
        (2, "start"),
    ]
    assert [group.y for group in groups] == [row_middle(number) for number in range(3)]
    assert drawing.height == 3 * NAMED_ROW
