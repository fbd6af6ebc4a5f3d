"""A drawing as SVG, written by hand: the same drawing always gives the same text."""

from __future__ import annotations

from collections.abc import Iterator

from servecheck.view.marks import Drawing, Mark, Point, Rect, Shape, Strokes, Text

PROSE = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
FIXED = "'DejaVu Sans Mono', Menlo, Consolas, 'Courier New', monospace"


def svg(drawing: Drawing) -> str:
    """The text of an SVG file."""
    return "".join(f"{line}\n" for line in _lines(drawing))


def _lines(drawing: Drawing) -> Iterator[str]:
    width, height = _n(drawing.width), _n(drawing.height)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" font-family="{FIXED}">'
    )
    yield f"<title>{_escaped(drawing.title)}</title>"
    yield f'<rect width="{width}" height="{height}" fill="#FFFFFF"/>'
    for mark in drawing.marks:
        yield _mark(mark)
    yield "</svg>"


def _mark(mark: Mark) -> str:
    match mark:
        case Rect(x, y, width, height):
            where = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
            fill = f' fill="{mark.fill or "none"}"'
            lines = "" if mark.stroke is None else _pen(mark.stroke, mark.weight, mark.dash)
            return _element("rect", f"{where}{fill}{lines}", mark.tip)
        case Text(x, y, text, size):
            where = f'x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}" fill="{mark.fill}"'
            anchor = "" if mark.anchor == "start" else f' text-anchor="{mark.anchor}"'
            bold = ' font-weight="bold"' if mark.bold else ""
            font = f' font-family="{PROSE}"' if mark.prose else ""
            # Runs of spaces in an id are told apart.
            kept = ' xml:space="preserve"' if "  " in text else ""
            inside = _tip(mark.tip) + _escaped(text)
            return f"<text {where}{anchor}{bold}{font}{kept}>{inside}</text>"
        case Strokes(lines):
            path = "".join(f"M{'L'.join(map(_point, line))}" for line in lines)
            pen = _pen(mark.stroke, mark.weight, mark.dash)
            return f'<path d="{path}" fill="none"{pen}/>'
        case Shape(points, fill):
            path = "L".join(map(_point, points))
            return f'<path d="M{path}Z" fill="{fill}"/>'


def _element(name: str, attributes: str, tip: str) -> str:
    return f"<{name} {attributes}>{_tip(tip)}</{name}>" if tip else f"<{name} {attributes}/>"


def _tip(tip: str) -> str:
    return f"<title>{_escaped(tip)}</title>" if tip else ""


def _pen(stroke: str, weight: float, dash: tuple[float, ...]) -> str:
    dashes = f' stroke-dasharray="{" ".join(map(_n, dash))}"' if dash else ""
    return f' stroke="{stroke}" stroke-width="{_n(weight)}"{dashes}'


def _point(point: Point) -> str:
    return f"{_n(point[0])} {_n(point[1])}"


def _n(number: float) -> str:
    """A number as short as it gets, to a hundredth."""
    return f"{number:.2f}".rstrip("0").rstrip(".")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
