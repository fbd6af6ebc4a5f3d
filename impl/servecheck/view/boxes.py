"""The box of one block, and the patterns and outlines on it.

    ┌─┬────────┬─┐   left: the colour of each holder, in its row
    │ │   12   │▒│   right: the pattern of a namespace, if it is not the public one
    │ │   ×3   │▒│   below: reference count from 2 on; "=5": same content as block 5
    └─┴━━━━━━━━┴─┘   a bar: the step in flight writes to it

Colour is never the only sign: outlines, dashes and patterns say the same in grey.
"""

from __future__ import annotations

from collections.abc import Iterator

from servecheck.view.marks import GREY, INK, Mark, Point, Rect, Shape, Strokes, Text, text_width
from servecheck.view.scene import Change, ShownBlock

STRIPE, HATCH = 5.0, 8.0
CORNER = 8.0
"""Beside the number, on both sides: room for a small sign in the corner."""
NUMBER, NOTE = 12.0, 9.5
"""Sizes of type."""

COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#B8A800",
    "#7B5CB8",
)
"""After Okabe and Ito: told apart by all eyes."""
NOBODY = "#8A8A8A"
SHARED, IDLE, PAPER = "#E4E4E4", "#F6F6F6", "#FFFFFF"
FRAME, FAINT, PLAIN = "#4A4A4A", "#9A9A9A", "#C8C8C8"
DASHED = (3.0, 2.0)
RELEASED = "#B03A00"
WRONG = "#D00036"


def colour(hue: int | None) -> str:
    """Of a holder."""
    return NOBODY if hue is None else COLOURS[hue]


def tint(hue: int | None) -> str:
    """The same colour, pale."""
    value = colour(hue)
    parts = (int(value[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{255 - (255 - part) // 4:02X}" for part in parts)


def note(block: ShownBlock) -> str:
    """What stands beside the number of a block."""
    count = f"×{block.ref_count}" if block.ref_count > 1 else ""
    same = "" if block.found is None else f"={block.found}"
    return f"{count} {same}".strip()


def width_needed(block: ShownBlock, hatched: bool, again: bool) -> float:
    """Width of a box in which all that is said of a block has room."""
    number, beside = text_width(_number(block, again), NUMBER), text_width(note(block), NOTE)
    inside = max(number, beside) if block.queue is None else number + beside
    return STRIPE + inside + 2 * CORNER + (HATCH if hatched else 0)


def _number(block: ShownBlock, again: bool) -> str:
    return f"({block.number})" if again else str(block.number)


def box(
    block: ShownBlock,
    at: Rect,
    stripes: tuple[tuple[int | None, float, float], ...],
    pattern: int | None,
    tip: str,
    hatched: bool,
    again: bool = False,
) -> Iterator[Mark]:
    """The marks of a block in the place `at`. `stripes` are holders: colour, y, height. `hatched`
    says that room for a pattern is kept in all boxes."""
    x, y, width, height = at.x, at.y, at.width, at.height
    frame, dash = pen(block)
    own = tint(stripes[0][0]) if stripes else SHARED
    fill = IDLE if block.queue is not None else SHARED if block.ref_count > 1 else own
    fill = fill if block.hashed else PAPER
    yield Rect(x, y, width, height, fill, tip=tip, block=block.number)
    for hue, top, tall in stripes:
        yield Rect(x, top, STRIPE, tall, colour(hue))
    if pattern is not None:
        yield Rect(x + width - HATCH, y, HATCH, height, PAPER)
        yield hatch(pattern, x + width - HATCH, y, HATCH, height)
    yield Rect(x, y, width, height, None, frame, 1.2, dash)
    left, right = x + STRIPE, x + width - (HATCH if hatched else 0)
    if block.written:
        yield written(left, right, y + height)
    # In the rows of those who hold it, if there are others.
    top = stripes[0][1] if stripes else y
    bottom = sum(stripes[-1][1:]) if stripes else y + height
    yield from _words(block, (left + right) / 2, (top + bottom) / 2, again)
    yield from signs(block, x, y, width, height, left, right)


def pen(block: ShownBlock) -> tuple[str, tuple[float, ...]]:
    """How a block is framed: dashed if nobody holds it."""
    return (FRAME, ()) if block.queue is None else (FAINT, DASHED)


def _words(block: ShownBlock, middle: float, centre: float, again: bool) -> Iterator[Mark]:
    number = _number(block, again)
    beside = note(block)
    if not beside:
        yield Text(middle, centre + 4, number, NUMBER, "middle", bold=True)
    elif block.queue is None:
        yield Text(middle, centre - 2, number, NUMBER, "middle", bold=True)
        yield Text(middle, centre + 8.5, beside, NOTE, "middle")
    else:
        wide = text_width(number, NUMBER)
        left = middle - (wide + text_width(beside, NOTE)) / 2
        yield Text(left, centre + 4, number, NUMBER, bold=True)
        yield Text(left + wide, centre + 4, beside, NOTE)


def signs(
    block: ShownBlock,
    x: float,
    y: float,
    width: float,
    height: float,
    left: float | None = None,
    right: float | None = None,
) -> Iterator[Mark]:
    """What became of a block, on a box in this place: an outline, and signs in its corners."""
    left, right = x if left is None else left, x + width if right is None else right
    yield from outline(block.changes, x, y, width, height, left - x)
    if Change.EVICTED in block.changes:
        yield cross(right - 8, y + 3.5)
    if Change.STORED in block.changes:
        yield diamond(left + 6, y + 7)


def outline(
    changes: tuple[Change, ...],
    x: float,
    y: float,
    width: float,
    height: float,
    stripe: float = 0,
) -> Iterator[Mark]:
    """`stripe` is the width of what stands left in the box, and stays visible."""
    if Change.TAKEN in changes:
        yield Rect(x, y, width, height, None, INK, 2.8)
    elif Change.FOUND in changes:
        yield Rect(x, y, width, height, None, INK, 1.4)
        inner = x + max(stripe + 1.6, 2.8)
        yield Rect(inner, y + 2.8, x + width - 2.8 - inner, height - 5.6, None, INK, 1.1)
    elif Change.RELEASED in changes:
        yield Rect(x, y, width, height, None, RELEASED, 2.6, (5.0, 3.0))


def ring(around: Rect) -> Iterator[Mark]:
    """The sign of what is wrong, around its box."""
    x, y, width, height = around.x, around.y, around.width, around.height
    yield Rect(x - 1.5, y - 1.5, width + 3, height + 3, None, WRONG, 3)


def written(left: float, right: float, bottom: float) -> Mark:
    """The sign of a block that the step in flight writes to."""
    return Rect(left + 4, bottom - 6.5, right - left - 8, 2.6, INK)


def cross(x: float, y: float) -> Mark:
    return Strokes((((x, y), (x + 5, y + 5)), ((x, y + 5), (x + 5, y))), INK, 1.6)


def diamond(x: float, y: float) -> Mark:
    return Shape(((x, y - 3), (x + 3, y), (x, y + 3), (x - 3, y)))


# --- patterns ------------------------------------------------------------------------------

PATTERNS = 6


def hatch(pattern: int, x: float, y: float, width: float, height: float) -> Mark:
    """One of the patterns, filling a place; from the seventh namespace on they come again."""
    lines = tuple(_hatch(pattern % PATTERNS, x, y, width, height))
    return Strokes(lines, GREY, 1.0)


def _hatch(
    pattern: int, x: float, y: float, width: float, height: float
) -> Iterator[tuple[Point, ...]]:
    right = x + width
    steps = [4.0 * k for k in range(int(height // 4) + 1)]
    rising = [(at, at + width) for at in steps if at + width <= height]
    match pattern:
        case 0:
            yield from (((x, y + b), (right, y + a)) for a, b in rising)
        case 1:
            yield from (((x, y + at), (right, y + at)) for at in steps[1:] if at < height)
        case 2:
            for a, b in rising[::2]:
                yield ((x, y + b), (right, y + a))
                yield ((x, y + a), (right, y + b))
        case 3:
            yield from (((at, y), (at, y + height)) for at in (x + 2.5, x + 5.5))
        case 4:
            yield from (((x, y + a), (right, y + b)) for a, b in rising)
        case _:
            left = x + width / 2 - 1.5
            yield from (((left, y + at + 1), (left + 3, y + at + 1)) for at in steps[:-1])
