"""Charts: text keeps its size, everything is inside, and lines without points are in the key only."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from forebay.pages.axes import Axis
from forebay.pages.charts import (
    HEIGHT,
    NAMED_ROW,
    Line,
    Note,
    Row,
    line_figure,
    row_middle,
    rows_drawing,
)
from forebay.pages.svg import group, text
from forebay.pages.units import NUMBER, SECONDS

POINTS = st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)), max_size=20)
TEXT = re.compile(r'<text x="([^"]*)%" y="([^"]*)" dx="[^"]*" class="(\w+) [^"]*">(.*?)</text>')


@given(POINTS, st.booleans(), st.booleans())
def test_any_line_is_inside_its_chart(points: list[tuple[float, float]], log: bool, steps: bool) -> None:
    figure = line_figure(
        "title",
        [
            Line("one", points, steps=steps, marks=True),
            Line("without points", (), look="dash"),
            Line("", points, look="dots"),
        ],
        label="label",
        x_name="x",
        x_unit=SECONDS,
        y_unit=NUMBER,
        log_x=log,
        log_y=log,
        notes=[Note(*point, "note") for point in points[:3]],
    )
    assert [key.words for key in figure.keys] == ["one", "without points"]
    assert figure.drawing.shapes.count("<path") == (2 if points else 0)
    for x, y, _, _ in TEXT.findall(figure.drawing.shapes):
        assert 0 <= float(x) <= 100
        assert -20 < float(y) <= HEIGHT + 40
    for place in re.findall(r'cx="(.*?)%"', figure.drawing.shapes):
        assert 0 <= float(place) <= 100
    for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", figure.drawing.shapes):
        assert 0 <= float(x) <= 1000
        assert 0 <= float(y) <= HEIGHT


def test_texts_in_a_drawing_are_escaped() -> None:
    shape = group(0, [text(0, 0, "<b>\u202e&")], place='"><i>', title="</title>")
    assert "&lt;b&gt;\ufffd&amp;" in shape
    assert 'href="#&#34;&gt;&lt;i&gt;"' in shape
    assert "<title>&lt;/title&gt;</title>" in shape


def test_a_name_is_on_the_side_with_more_room() -> None:
    rows = [Row((), "early", 10, 20), Row((), "late", 80, 95), Row((), "long", 2, 97)]
    drawing = rows_drawing(rows, Axis(0, 1), "x", "label")
    named = {words: (x, anchor) for x, _, anchor, words in TEXT.findall(drawing.shapes)}
    assert named["early"] == ("10", "start")
    assert named["late"] == ("95", "end")
    assert named["long"] == ("2", "start")
    middles = re.findall(r"translate\(0 (.*?)\)", drawing.shapes)
    assert [float(y) for y in middles] == [row_middle(number) for number in range(3)]
    assert drawing.height == 3 * NAMED_ROW
