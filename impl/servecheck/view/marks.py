"""What a drawing is made of: rectangles, texts, strokes and filled shapes, in units of a pixel.

A drawing is a value; how it becomes a file is the business of `svg` and `png`. Where a text ends is
known without a font: texts of unknown content are set in a fixed-width font, whose characters are
0.6 of its size wide, and those of the drawing itself in another, of which 0.62 (bold: 0.7) is a
bound. A mark that stands for something has a `tip`, which tells of it at length.
"""

from __future__ import annotations

from typing import Literal

from attrs import evolve, frozen

from servecheck.view.words import columns

Point = tuple[float, float]

INK = "#1A1A1A"
GREY = "#5F5F5F"


@frozen
class Rect:
    x: float
    y: float
    width: float
    height: float
    fill: str | None = None
    stroke: str | None = None
    weight: float = 1
    dash: tuple[float, ...] = ()
    tip: str = ""
    block: int | None = None
    """The block that it stands for."""


@frozen
class Text:
    """One line; `y` is its base line."""

    x: float
    y: float
    text: str
    size: float
    anchor: Literal["start", "middle"] = "start"
    bold: bool = False
    prose: bool = False
    """Set in the font for prose."""
    fill: str = INK
    tip: str = ""

    @property
    def width(self) -> float:
        return text_width(self.text, self.size, prose=self.prose, bold=self.bold)

    @property
    def left(self) -> float:
        return self.x - (self.width / 2 if self.anchor == "middle" else 0)


@frozen
class Strokes:
    """Lines through points, drawn alike."""

    lines: tuple[tuple[Point, ...], ...]
    stroke: str = INK
    weight: float = 1
    dash: tuple[float, ...] = ()


@frozen
class Shape:
    """A filled polygon."""

    points: tuple[Point, ...]
    fill: str = INK


Mark = Rect | Text | Strokes | Shape


def moved(mark: Mark, right: float, down: float) -> Mark:
    """The same mark in another place."""
    match mark:
        case Rect(x, y) | Text(x, y):
            return evolve(mark, x=x + right, y=y + down)
        case Strokes(lines):
            shifted = tuple(tuple((x + right, y + down) for x, y in line) for line in lines)
            return evolve(mark, lines=shifted)
        case Shape(points):
            return evolve(mark, points=tuple((x + right, y + down) for x, y in points))


@frozen
class Drawing:
    """All marks, in the order in which they are laid one over the other."""

    width: float
    height: float
    title: str
    marks: tuple[Mark, ...]


def text_width(text: str, size: float, *, prose: bool = False, bold: bool = False) -> float:
    """How wide a text is at most."""
    return columns(text) * size * ((0.7 if bold else 0.62) if prose else 0.6)
