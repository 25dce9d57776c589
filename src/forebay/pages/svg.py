"""Shapes as SVG. `Markup.format` escapes every value.

`x` and widths are per cent, `y` and heights CSS pixels: a drawing fills any width, and its text keeps its
size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from forebay.pages.units import shown_text

Colour = Literal["blue", "red", "green", "violet", "gold", "soft", "faint", "ink"]
COLOURS: Sequence[Colour] = ("blue", "red", "green", "violet", "gold", "soft", "faint", "ink")
PALETTE: Sequence[Colour] = ("blue", "red", "green", "violet", "gold")
Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True, slots=True)
class Drawing:
    """`label`: for screen readers. `frame`: the room for axis labels."""

    label: str
    height: float
    shapes: Markup
    frame: Literal["axes", "rows", "bare"]


def text(
    x: float, y: float, words: str, anchor: Anchor = "start", *, dx: float = 0, look: str = ""
) -> Markup:
    """`dx`: pixels to the right of `x`."""
    shape = Markup('<text x="{:.5g}%" y="{:.5g}" dx="{:g}" class="{} {}">{}</text>')
    return shape.format(x, y, dx, anchor, look, shown_text(words))


def rule(x1: float, x2: float, y1: float, y2: float, look: str = "grid") -> Markup:
    shape = Markup('<line x1="{:.5g}%" x2="{:.5g}%" y1="{:.5g}" y2="{:.5g}" class="{}"/>')
    return shape.format(x1, x2, y1, y2, look)


def rect(x: float, width: float, y: float, height: float, look: str) -> Markup:
    shape = Markup('<rect x="{:.5g}%" width="{:.5g}%" y="{:.5g}" height="{:.5g}" class="{}"/>')
    return shape.format(x, width, y, height, look)


def circle(x: float, y: float, radius: float, look: str) -> Markup:
    return Markup('<circle cx="{:.5g}%" cy="{:.5g}" r="{:g}" class="{}"/>').format(x, y, radius, look)


def curve(points: Iterable[tuple[float, float]], look: str, *, steps: bool = False) -> Markup:
    """A line, dots or an area. `steps`: each value holds until the next point.

    A path has no per cent, so it is in its own svg, stretched to the width.
    """
    found: list[str] = []
    for number, (x, y) in enumerate(points):
        if "dots" in look:
            found.append(f"M{x * 10:.0f} {y:.1f}h.1")
        elif number and steps:
            found.append(f"H{x * 10:.0f}V{y:.1f}")
        else:
            found.append(f"{'L' if number else 'M'}{x * 10:.0f} {y:.1f}")
    shape = Markup(
        '<svg width="100%" height="1" viewBox="0 0 1000 1" preserveAspectRatio="none">'
        '<path d="{}{}" class="{}"/></svg>'
    )
    return shape.format("".join(found), "Z" if "area" in look else "", look)


def group(y: float, shapes: Iterable[Markup], *, place: str = "", title: str = "") -> Markup:
    """Move shapes down by `y`; `place`: link to that id of the page. `title`: shown on hovering."""
    inside = joined(shapes)
    if title:
        inside = Markup("<title>{}</title>{}").format(shown_text(title), inside)
    if place:
        inside = Markup('<a href="#{}">{}</a>').format(shown_text(place), inside)
    return Markup('<g transform="translate(0 {:.5g})">{}</g>').format(y, inside)


def joined(shapes: Iterable[Markup]) -> Markup:
    return Markup("").join(shapes)
