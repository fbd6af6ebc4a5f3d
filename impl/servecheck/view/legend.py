"""The legend: for each sign that occurs in a picture a sample of it, and what it means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum

from servecheck.view import boxes
from servecheck.view.boxes import FAINT, FRAME, HATCH, IDLE, PAPER, PLAIN, SHARED, STRIPE
from servecheck.view.marks import Mark, Rect, Strokes, Text, text_width
from servecheck.view.scene import Change
from servecheck.view.words import cut

WIDTH, HEIGHT = 26.0, 16.0
"""Of a sample."""
SAMPLE = 36.0
"""From a sample to its text."""
MOST_SPACES, LONGEST_SPACE = 12, 34

Sample = Callable[[float, float], Iterable[Mark]]
"""Draws a sample in a place."""


class Sign(Enum):
    """A sign, and what it means."""

    OWN = "held by one request"
    SHARED = "held by several: ×n"
    OPEN = "held, and has no key yet"
    CACHED = "cached, and nobody holds it"
    CUT_OFF = "what came before it is gone"
    EMPTY = "free, without content"
    COPY = "a copy: look-ups find block 5"
    AGAIN = "block 7 once more"
    WRITTEN = "written by the step in flight"
    TAKEN = "taken for new content"
    FOUND = "found by a look-up"
    RELEASED = "released: nobody holds it now"
    EVICTED = "evicted: old content forgotten"
    STORED = "stored: it got its key"
    WRONG = "not as specified"


def legend(
    signs: set[Sign], hues: tuple[int, ...], patterns: Mapping[str, int]
) -> Iterator[tuple[Sample, str]]:
    """A sample and its meaning for each of `signs`, and each namespace with a pattern. Samples have
    the colours that occur, `hues`."""
    one: tuple[int | None, ...] = hues[:1] or (None,)
    samples: dict[Sign, Sample] = {
        Sign.OWN: _box(boxes.tint(one[0]), *one),
        Sign.SHARED: _box(SHARED, *(hues[:2] or one)),
        Sign.OPEN: _box(PAPER, *one),
        Sign.CACHED: _box(IDLE, dash=boxes.DASHED, frame=FAINT),
        Sign.CUT_OFF: _word("cut"),
        Sign.EMPTY: _box(PAPER, frame=PLAIN),
        Sign.COPY: _word("=5"),
        Sign.AGAIN: _word("(7)"),
        Sign.WRITTEN: _written,
        Sign.TAKEN: _outlined(Change.TAKEN),
        Sign.FOUND: _outlined(Change.FOUND),
        Sign.RELEASED: _outlined(Change.RELEASED),
        Sign.EVICTED: lambda x, y: [boxes.cross(x + 11, y + 5)],
        Sign.STORED: lambda x, y: [boxes.diamond(x + 13, y + 8)],
        Sign.WRONG: lambda x, y: boxes.ring(Rect(x + 3, y + 3, WIDTH - 6, HEIGHT - 6)),
    }
    for sign, sample in samples.items():
        if sign in signs:
            yield sample, sign.value
    for space, pattern in list(patterns.items())[:MOST_SPACES]:
        yield _pattern(pattern), cut(space, LONGEST_SPACE)
    if len(patterns) > MOST_SPACES:
        yield _word("…"), f"{len(patterns) - MOST_SPACES} more namespaces"


def legend_below(
    entries: list[tuple[Sample, str]], x: float, y: float, width: float
) -> tuple[list[Mark], float]:
    """The marks of a legend in columns, under a line at `y`; and where it ends."""
    marks: list[Mark] = [Strokes((((x, y), (x + width, y)),), PLAIN)]
    widest = max(SAMPLE + text_width(text, 10.5, prose=True) + 16 for _, text in entries)
    across = max(1, int(width // widest))
    down = -(-len(entries) // across)
    for at, (draw, text) in enumerate(entries):
        left, top = x + at // down * (width / across), y + 8 + at % down * 22
        marks += draw(left, top + 2)
        marks.append(Text(left + SAMPLE, top + 14, text, 10.5, prose=True))
    return marks, y + 8 + down * 22 - 6


def _box(fill: str, *hues: int | None, dash: tuple[float, ...] = (), frame: str = FRAME) -> Sample:
    def draw(x: float, y: float) -> Iterator[Mark]:
        yield Rect(x, y, WIDTH, HEIGHT, fill)
        tall = HEIGHT / max(len(hues), 1)
        for at, hue in enumerate(hues):
            yield Rect(x, y + at * tall, STRIPE, tall, boxes.colour(hue))
        yield Rect(x, y, WIDTH, HEIGHT, None, frame, 1.2, dash)

    return draw


def _outlined(change: Change) -> Sample:
    return lambda x, y: boxes.outline((change,), x, y, WIDTH, HEIGHT)


def _word(text: str) -> Sample:
    return lambda x, y: [Text(x + WIDTH / 2, y + 12, text, 10.5, "middle")]


def _written(x: float, y: float) -> Iterator[Mark]:
    yield Rect(x, y, WIDTH, HEIGHT, PAPER, FRAME, 1.2)
    yield boxes.written(x - 1, x + WIDTH + 1, y + HEIGHT + 2)


def _pattern(pattern: int) -> Sample:
    def draw(x: float, y: float) -> Iterator[Mark]:
        left = x + (WIDTH - HATCH) / 2
        yield boxes.hatch(pattern, left, y, HATCH, HEIGHT)
        yield Rect(left, y, HATCH, HEIGHT, None, FRAME, 1)

    return draw
