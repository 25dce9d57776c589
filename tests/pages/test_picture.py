"""A picture is one well-formed SVG file, the same each time, with its charts apart."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.pages.documents import ATTACKS

from forebay.errors import SettingError
from forebay.pages.charts import Bar, Line, bar_figure, share_figure
from forebay.pages.picture import WIDTH, Picture, check_picture, write_picture
from forebay.pages.units import SECONDS

SVG = "{http://www.w3.org/2000/svg}"


def picture(text: str, columns: int = 2) -> Picture:
    lines = [Line(text, [(0.1, 0.5), (9.0, 1.0)], look="dash"), Line("b", [(0.2, 1.0)], "red")]
    share = share_figure(text, lines, label=text, x_name=text, x_unit=SECONDS, log_x=True)
    bars = [Bar(text, 1.0, "1.0×"), Bar("b", 3.0, "3.0×", "red", pale=True)]
    return Picture(text, [share, bar_figure(text, bars, x_name=text, label=text, marks=[2.0])] * 2, columns)


@pytest.mark.parametrize("text", ["plain", *ATTACKS])
def test_no_text_becomes_markup(text: str) -> None:
    found = ElementTree.fromstring(picture(text).svg())
    plain = ElementTree.fromstring(picture("plain").svg())
    assert [each.tag for each in found.iter()] == [each.tag for each in plain.iter()]
    assert text in [each.text for each in found.iter(f"{SVG}text")]


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_charts_are_inside_and_do_not_overlap(columns: int) -> None:
    root = ElementTree.fromstring(picture("plain", columns).svg())
    places = []
    for panel in root.findall(f"{SVG}g"):
        x, y = map(float, panel.attrib["transform"].removeprefix("translate(").removesuffix(")").split())
        (drawing,) = panel.findall(f"{SVG}svg")
        left, top, width, height = (float(drawing.attrib[name]) for name in ("x", "y", "width", "height"))
        places.append((x, y, x + left + width, y + top + height))
    assert len(places) == 4
    for number, (left, top, _, _) in enumerate(places):
        for _, _, right, bottom in places[:number]:
            assert left >= right or top >= bottom
    assert max(place[2] for place in places) <= WIDTH
    assert max(place[3] for place in places) <= float(root.attrib["height"])


def test_a_picture_is_written_the_same_each_time(tmp_path: Path) -> None:
    write_picture(tmp_path / "a.svg", picture("plain"))
    assert (tmp_path / "a.svg").read_text() == picture("plain").svg()
    with pytest.raises(SettingError, match=r"--plot: .* cannot be written"):
        write_picture(tmp_path, picture("plain"))
    check_picture(tmp_path / "a.SVG")
    with pytest.raises(SettingError, match=r"ends in \.svg, found 'a\.png'"):
        check_picture(tmp_path / "a.png")
