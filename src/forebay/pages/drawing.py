"""Drawings as values, which the template `drawing.html.j2` writes as SVG.

`x` and widths are per cent of the drawing's width, `y` and heights are CSS pixels. So a drawing fills any
width, and its text and lines keep their size: a label is as large on a phone as on a wide screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from markupsafe import Markup

Colour = Literal["blue", "red", "green", "violet", "gold", "soft", "faint", "ink"]
Anchor = Literal["start", "middle", "end"]
PALETTE: Sequence[Colour] = ("blue", "red", "green", "violet", "gold")
STRETCHED = 10
"""Units of a path for one per cent of the width: the template's `viewBox` is 1000 wide."""


@dataclass(frozen=True, slots=True)
class Text:
    """`dx`: how many pixels right of `x` the text begins, or where it is anchored."""

    kind: ClassVar[str] = "text"
    x: float
    y: float
    words: str
    anchor: Anchor = "start"
    dx: float = 0.0
    look: Literal["", "soft", "halo"] = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A straight line. `width`: in pixels."""

    kind: ClassVar[str] = "rule"
    x1: float
    x2: float
    y1: float
    y2: float
    look: str = "grid"
    width: float = 1.0


@dataclass(frozen=True, slots=True)
class Rect:
    kind: ClassVar[str] = "rect"
    x: float
    width: float
    y: float
    height: float
    colour: Colour
    pale: bool = False


@dataclass(frozen=True, slots=True)
class Circle:
    kind: ClassVar[str] = "circle"
    x: float
    y: float
    radius: float
    colour: Colour
    filled: bool = False


@dataclass(frozen=True, slots=True)
class Curve:
    """An SVG path, stretched to the drawing's width; made by `curve`, of numbers only."""

    kind: ClassVar[str] = "curve"
    path: Markup
    colour: Colour
    look: Literal["line", "dash", "dots", "area"] = "line"


@dataclass(frozen=True, slots=True)
class Group:
    """Shapes, moved down by `y`; with `place`, a link to that id of the page. `title`: shown on hovering."""

    kind: ClassVar[str] = "group"
    y: float
    shapes: Sequence[Shape]
    place: str = ""
    title: str = ""


Shape: TypeAlias = "Text | Rule | Rect | Circle | Curve | Group"


@dataclass(frozen=True, slots=True)
class Drawing:
    """`label` describes it for screen readers. `frame`: the room around it for axis labels."""

    label: str
    height: float
    shapes: Sequence[Shape]
    frame: Literal["axes", "rows", "bare"]


def curve(
    points: Iterable[tuple[float, float]],
    colour: Colour,
    look: Literal["line", "dash", "dots", "area"] = "line",
    *,
    steps: bool = False,
) -> Curve:
    """A path through points of (per cent, pixels). `steps`: each value holds until the next point."""
    found: list[str] = []
    for number, (x, y) in enumerate(points):
        place = f"{x * STRETCHED:.0f} {y:.1f}".removesuffix(".0")
        if look == "dots":
            found.append(f"M{place}h.1")
        elif number and steps:
            found.append(f"H{place.replace(' ', 'V')}")
        else:
            found.append(f"{'L' if number else 'M'}{place}")
    return Curve(Markup("".join(found) + ("Z" if look == "area" else "")), colour, look)
