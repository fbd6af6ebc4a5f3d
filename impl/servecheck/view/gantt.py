"""The picture of a comparison: who sits in which slot, step by step, one chart under the other.

Theory of operation. A chart has a row for each slot and runs from left to right in steps; all
charts have one scale, so that what ends earlier is seen to. A request is a bar in the row of its
slot, in its own colour, the same in every chart; a bar that ends because its request was sent back
has an edge of ink and a cross. Under the slots a strip shows how many wait. Drawn with the marks of
`servecheck.view.marks`, so that an .svg needs nothing, and a .png is matplotlib's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from servecheck.view import boxes
from servecheck.view.marks import GREY, INK, Drawing, Mark, Rect, Strokes, Text, text_width
from servecheck.view.words import cut, plain
from servecheck.workload.chart import Sign, Spell, lanes, spells
from servespec.theory.stream import Events

PAGE, EDGE = 1120.0, 20.0
LEFT = 64.0
"""Where the time begins, right of the names of the slots."""
ROW, LEAST_ROW = 22.0, 6.0
TALLEST = 360.0
"""Of the rows of a chart."""
STRIP = 34.0
"""Of the number that waits."""
EMPTY, LINE = "#F3F3F3", "#DDDDDD"
QUEUE = "#9A9A9A"
LABEL = 10.0


@frozen
class Chart:
    """One run: its name, a line of figures, and its events."""

    name: str
    said: str
    steps: tuple[Events, ...]


def gantt(title: str, charts: Sequence[Chart], slots: int) -> Drawing:
    """The charts of one stream, on one scale, of at least `slots` rows each."""
    longest = max((len(chart.steps) for chart in charts), default=1) or 1
    scale = (PAGE - LEFT - EDGE) / longest
    ids = list(dict.fromkeys(id for chart in charts for id in lanes(chart.steps)))
    hues = {id: number % len(boxes.COLOURS) for number, id in enumerate(ids)}
    most = max((_most_waiting(chart.steps) for chart in charts), default=0)
    marks: list[Mark] = [Text(EDGE, EDGE + 16, cut(plain(title), 90), 16, bold=True, prose=True)]
    y = EDGE + 44
    for chart in charts:
        marks += [
            Text(EDGE, y, cut(plain(chart.name), 40), 13, bold=True),
            Text(
                EDGE + text_width(chart.name, 13) + 16, y, chart.said, 11.5, fill=GREY, prose=True
            ),
        ]
        y += 12
        rows = max(slots, 1 + max((s.slot for s in spells(chart.steps)), default=0))
        row = max(LEAST_ROW, min(ROW, TALLEST / rows))
        marks += _grid(y, row, rows, scale, longest)
        for spell in spells(chart.steps):
            marks += _bar(spell, y, row, scale, hues[spell.id])
        y += rows * row + 8
        marks += _queue(chart.steps, y, scale, most)
        y += STRIP + 8
        marks += _axis(y, scale, longest)
        y += 44
    marks += _legend(y - 6)
    return Drawing(PAGE, y + 14, title, tuple(marks))


def _grid(y: float, row: float, rows: int, scale: float, longest: int) -> Iterator[Mark]:
    gap = 1.5 if row > 10 else 0.5
    for slot in range(rows):
        top = y + slot * row
        yield Rect(LEFT, top, longest * scale, row - gap, fill=EMPTY)
        if row >= LABEL:
            yield Text(EDGE, top + row / 2 + 3.5, f"slot {slot}", LABEL, fill=GREY)


def _bar(spell: Spell, y: float, row: float, scale: float, hue: int) -> Iterator[Mark]:
    gap = 1.5 if row > 10 else 0.5
    x, width = LEFT + spell.start * scale, (spell.end - spell.start) * scale
    top, height = y + spell.slot * row, row - gap
    colour = boxes.COLOURS[hue]
    ended = "sent back" if spell.sent_back else "left"
    tip = f"{spell.id}: slot {spell.slot}, steps {spell.start} to {spell.end - 1}, then {ended}"
    yield Rect(
        x,
        top,
        max(width - 0.6, 0.6),
        height,
        fill=boxes.tint(hue),
        stroke=colour,
        weight=0.8,
        tip=tip,
    )
    yield Rect(x, top, min(3.0, width / 2), height, fill=colour)
    if spell.sent_back:
        right, reach = x + width - 0.6, max(2.5, min(height / 2 - 1, 5.0, width / 2))
        middle = top + height / 2
        yield Strokes(
            (
                ((right - 2 * reach, middle - reach), (right, middle + reach)),
                ((right - 2 * reach, middle + reach), (right, middle - reach)),
            ),
            stroke=INK,
            weight=1.6,
        )
    label = plain(spell.id)
    if row >= LABEL and text_width(label, LABEL) + 8 < width:
        yield Text(x + 6, top + height / 2 + 3.5, label, LABEL, tip=tip)


def _waiting(steps: Sequence[Events]) -> list[int]:
    """How many wait in each step."""
    drawn = lanes(steps).values()
    return [
        sum(lane[at] in (Sign.WAITS, Sign.SENT_BACK) for lane in drawn if at < len(lane))
        for at in range(len(steps))
    ]


def _most_waiting(steps: Sequence[Events]) -> int:
    return max(_waiting(steps), default=0)


def _queue(steps: Sequence[Events], y: float, scale: float, most: int) -> Iterator[Mark]:
    yield Text(EDGE, y + STRIP - 3, "waiting", LABEL, fill=GREY)
    if most:
        yield Text(EDGE, y + 9, f"{most:>7}", LABEL, fill=GREY)
    for at, number in _runs(_waiting(steps)):
        start, end = at
        height = STRIP * number / most if most else 0
        if height:
            yield Rect(
                LEFT + start * scale,
                y + STRIP - height,
                (end - start) * scale,
                height,
                fill=QUEUE,
                tip=f"{number} wait in steps {start} to {end - 1}",
            )
    yield Strokes((((LEFT, y + STRIP), (PAGE - EDGE, y + STRIP)),), stroke=LINE)


def _runs(values: Sequence[int]) -> Iterator[tuple[tuple[int, int], int]]:
    """Stretches of equal values."""
    start = 0
    for at in range(1, len(values) + 1):
        if at == len(values) or values[at] != values[start]:
            yield (start, at), values[start]
            start = at


def _axis(y: float, scale: float, longest: int) -> Iterator[Mark]:
    every = _nice(longest / 12)
    for step in range(0, longest + 1, every):
        x = LEFT + step * scale
        yield Strokes((((x, y - 6), (x, y - 2)),), stroke=GREY)
        yield Text(x, y + 9, str(step), LABEL, "middle", fill=GREY)
    yield Text(EDGE, y + 9, "step", LABEL, fill=GREY)


def _nice(rough: float) -> int:
    """1, 2 or 5 times a power of ten, and no less than asked for."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= rough:
                return factor * power
        power *= 10


def _legend(y: float) -> Iterator[Mark]:
    yield Rect(LEFT, y - 10, 26, 13, fill=boxes.tint(0), stroke=boxes.COLOURS[0], weight=0.8)
    yield Rect(LEFT, y - 10, 3, 13, fill=boxes.COLOURS[0])
    yield Text(LEFT + 34, y, "a request in its slot", 11, prose=True, fill=GREY)
    yield Strokes(
        (
            ((LEFT + 214, y - 9), (LEFT + 224, y + 1)),
            ((LEFT + 214, y + 1), (LEFT + 224, y - 9)),
        ),
        weight=1.6,
    )
    yield Text(LEFT + 232, y, "sent back to wait", 11, prose=True, fill=GREY)
    yield Rect(LEFT + 390, y - 10, 26, 13, fill=EMPTY)
    yield Text(LEFT + 424, y, "nobody", 11, prose=True, fill=GREY)
    yield Rect(LEFT + 510, y - 10, 26, 13, fill=QUEUE)
    yield Text(LEFT + 544, y, "how many wait", 11, prose=True, fill=GREY)
