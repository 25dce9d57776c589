"""Charts side by side as one SVG file, for documents and slides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forebay.errors import SettingError
from forebay.pages.charts import Figure
from forebay.pages.render import STYLE, environment, source

WIDTH, GAP = 1080.0, 32.0
TITLE_LINE, KEY_LINE = 34.0, 17.0
ROOM = {"axes": (54.0, 12.0, 14.0, 46.0), "rows": (8.0, 42.0, 8.0, 8.0), "bare": (0.0, 2.0, 0.0, 2.0)}
"""Pixels left of a drawing, above it, right of it and below it."""


@dataclass(frozen=True, slots=True)
class Picture:
    title: str
    figures: Sequence[Figure]
    columns: int = 2

    def svg(self) -> str:
        """Deterministic, on any machine."""
        columns = max(1, min(self.columns, len(self.figures)))
        width = (WIDTH - GAP * (columns + 1)) / columns
        panels = []
        top = TITLE_LINE if self.title else 0.0
        for begin in range(0, len(self.figures), columns):
            row = self.figures[begin : begin + columns]
            heads = [TITLE_LINE + KEY_LINE * len(one.keys) + ROOM[one.drawing.frame][1] for one in row]
            head = max(heads)
            for column, one in enumerate(row):
                left, _, right, _ = ROOM[one.drawing.frame]
                x = GAP + (width + GAP) * column
                panels.append((x, top, left, head, width - left - right, one))
            top += head + max(one.drawing.height + ROOM[one.drawing.frame][3] for one in row)
        return (
            environment()
            .get_template("picture.svg.j2")
            .render(title=self.title, width=WIDTH, height=top + GAP / 2, panels=panels, style=source(STYLE))
        )


def check_picture(path: Path) -> None:
    """Raise `SettingError` unless the file's name ends in .svg."""
    if path.suffix.lower() != ".svg":
        raise SettingError(f"--plot: expected a name that ends in .svg, found {path.name!r}")


def write_picture(path: Path, picture: Picture) -> None:
    """Raises `SettingError` if the file cannot be written."""
    try:
        path.write_text(picture.svg(), encoding="utf-8")
    except OSError as error:
        raise SettingError(f"--plot: {path} cannot be written: {error.strerror}") from None
