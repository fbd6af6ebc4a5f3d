"""A drawing as PNG, by matplotlib, which is asked for only here.

It is imported by name at run time: servecheck works, and is type-checked, without it.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from io import BytesIO
from math import sqrt
from typing import Any

from servecheck.view.errors import ViewError
from servecheck.view.marks import Drawing, Mark, Rect, Shape, Strokes, Text

POINTS = 72
"""Units of a drawing in an inch."""
SHARPNESS = 2.0
"""Pixels for a unit."""
BLUNT = 0.5
"""Below this nothing can be read."""
LONGEST, MOST = 60_000, 100_000_000
"""Pixels on a side, and in all."""


def png(drawing: Drawing) -> bytes:
    """The content of a PNG file.

    Raises:
        ViewError: matplotlib is not installed, or the drawing is too large for pixels.
    """
    try:
        figures = import_module("matplotlib.figure")
        patches = import_module("matplotlib.patches")
    except ImportError as error:
        raise ViewError(
            f"a .png needs matplotlib, which cannot be imported ({error}); "
            "pip install 'servecheck[view]', or write an .svg"
        ) from None
    width, height = drawing.width, drawing.height
    sharpness = min(SHARPNESS, LONGEST / max(width, height), sqrt(MOST / (width * height)))
    if sharpness < BLUNT:
        size = f"{width:.0f} × {height:.0f}"
        raise ViewError(f"the picture, {size}, is too large for a .png; write an .svg")
    figure = figures.Figure(figsize=(width / POINTS, height / POINTS))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    for order, mark in enumerate(drawing.marks):
        _draw(axes, patches, mark, order)
    out = BytesIO()
    with warnings.catch_warnings():
        # A letter that the font lacks is drawn as a box.
        warnings.simplefilter("ignore")
        figure.savefig(out, format="png", dpi=POINTS * sharpness, metadata={"Software": None})
    return out.getvalue()


def _draw(axes: Any, patches: Any, mark: Mark, order: int) -> None:
    match mark:
        case Rect(x, y, width, height):
            axes.add_patch(
                patches.Rectangle(
                    (x, y),
                    width,
                    height,
                    facecolor=mark.fill or "none",
                    edgecolor=mark.stroke or "none",
                    linewidth=0 if mark.stroke is None else mark.weight,
                    linestyle=_dashes(mark.dash, mark.weight),
                    zorder=order,
                )
            )
        case Text(x, y, text, size):
            axes.text(
                x,
                y,
                text,
                fontsize=size,
                color=mark.fill,
                family="DejaVu Sans" if mark.prose else "DejaVu Sans Mono",
                weight="bold" if mark.bold else "normal",
                ha="left" if mark.anchor == "start" else "center",
                va="baseline",
                parse_math=False,
                zorder=order,
            )
        case Strokes(lines):
            for line in lines:
                across, down = zip(*line, strict=True)
                axes.plot(
                    across,
                    down,
                    color=mark.stroke,
                    linewidth=mark.weight,
                    linestyle=_dashes(mark.dash, mark.weight),
                    solid_capstyle="butt",
                    zorder=order,
                )
        case Shape(points, fill):
            axes.add_patch(patches.Polygon(points, facecolor=fill, linewidth=0, zorder=order))


def _dashes(dash: tuple[float, ...], weight: float) -> object:
    """matplotlib counts dashes in widths of the line."""
    return (0, tuple(length / weight for length in dash)) if dash else "solid"
