"""Where everything stands in the picture of a scene.

Theory of operation. The picture has parts, one under the other:

* the title: which moment, what was done, what became of which blocks;
* the *tables*. A row is a text in the pool (`rows`), a column a position in the text. A block that
  several rows share is drawn once, as high as all of them together: an icicle plot of the tree of
  prefixes. A family of rows that is wider than the page goes on in further bands;
* the *free queue*, from its head, as a chain of small boxes; and the requests that wait;
* the legend, of what occurs in this picture and of nothing else.

No arrow is drawn between tables: what continues what, stands right of it. Two tables may hold the
same block behind different copies of one content; its second box has its number in brackets.

Nothing is left to chance or to a font (`marks`): the same scene is the same drawing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from attrs import define, field

from servecheck.view import boxes
from servecheck.view.boxes import DASHED, FAINT, FRAME, IDLE, PAPER, PLAIN, RELEASED
from servecheck.view.legend import Sign, legend, legend_below
from servecheck.view.marks import (
    GREY,
    INK,
    Drawing,
    Mark,
    Rect,
    Shape,
    Strokes,
    Text,
    text_width,
)
from servecheck.view.rows import Family, Row, families_of
from servecheck.view.scene import Change, Scene, ShownBlock
from servecheck.view.words import cut, listed, wrapped

PAGE, NARROWEST, BRIEFEST = 1040.0, 620.0, 300.0
"""Width of a picture: no more, unless a single column needs it; no less, for its texts."""
EDGE = 16.0
GAP = 4.0
"""Between two boxes."""
ROW, IDLE_ROW = 40.0, 26.0
CHIP = 22.0
"""Height of the small boxes."""
LINK = 7.0
"""Between two blocks of the free queue."""
LONGEST_RUN, SHOWN_OF_RUN = 60, 4
"""Blocks in a row, without content, that are all shown; of more, those at each end."""
LONGEST_ID = 18
MOST_LISTED = 16
MOST_LINES = 3
"""Of requests that wait."""


def layout(scene: Scene) -> Drawing:
    """The picture of a scene."""
    return Layout(scene).drawing()


@define
class Layout:
    """The drawing so far."""

    scene: Scene
    brief: bool = False
    """Only what the scene holds, with headings of few words, and no wider than that needs."""
    wrong_blocks: frozenset[int] = frozenset()
    wrong_holders: frozenset[str] = frozenset()
    """What is ringed; holders by their nodes."""
    marks: list[Mark] = field(factory=list)
    y: float = EDGE
    """Where the next thing may begin."""
    families: list[Family] = field(init=False)
    patterns: dict[str, int] = field(init=False)
    """Of each namespace but the public one."""
    label: float = field(init=False)
    """Width of what stands left of the boxes."""
    column: float = field(init=False)
    """Width of a column, its gap included."""
    page: float = field(init=False)
    seen: set[Sign] = field(factory=set)
    """What occurs, for the legend."""
    drawn: set[int] = field(factory=set)
    """Blocks that have a box in the tables."""
    held_by: dict[int, list[str]] = field(factory=dict)
    """Of each held block by whom, and at which position."""
    positions: int | None = None
    """The first one of the column heads that stand above."""

    def __attrs_post_init__(self) -> None:
        scene = self.scene
        self.families = families_of(scene)
        for holder in scene.holders:
            for position, number in enumerate(holder.table):
                whose = f"{cut(holder.name, 60)} at {position}"
                self.held_by.setdefault(number, []).append(whose)
        spaces = {b.namespace for b in scene.blocks.values()} - {"", "public"}
        self.patterns = {space: at for at, space in enumerate(sorted(spaces))}
        rows = [row for family in self.families for row in family]
        texts = [text.width for row in rows for text in _label(row, 0, 0, row.start)]
        self.label = max((*texts, 62.0)) + 22
        hatched = bool(self.patterns)
        times = Counter(
            number
            for number, _ in {
                pair for row in rows for pair in zip(row.path, row.boxes, strict=True)
            }
        )
        needed = (
            boxes.width_needed(b, hatched, times[b.number] > 1) for b in scene.blocks.values()
        )
        self.column = GAP + max(needed, default=30.0)
        longest = max((len(row.path) for row in rows), default=0)
        least, wanted = (2 * EDGE + self.label + n * self.column for n in (1, longest))
        self.page = max(least, BRIEFEST if self.brief else NARROWEST, min(PAGE, wanted))

    def drawing(self) -> Drawing:
        self._title()
        self.holdings()
        self._legend()
        scene = self.scene
        title = f"{scene.name}, {scene.place}: {cut(scene.doing, 200)}"
        return Drawing(self.page, self.y + EDGE, title, tuple(self.marks))

    def holdings(self) -> None:
        """Draw who holds what, and what is free."""
        self._tables()
        self._queue()
        self._waiting()

    @property
    def inner(self) -> float:
        """Width without the edges."""
        return self.page - 2 * EDGE

    @property
    def left(self) -> float:
        """Where the boxes begin."""
        return EDGE + self.label

    def _paragraph(self, text: str, size: float, lines: int, fill: str = INK) -> None:
        for line in wrapped(text, int(self.inner / (0.6 * size)), lines):
            self.y += size + 4
            self.marks.append(Text(EDGE, self.y, line, size, fill=fill))

    def _heading(self, text: str) -> None:
        self.y += 30
        self.marks.append(Text(EDGE, self.y, text, 12, bold=True, prose=True))
        self.y += 6

    # --- title ---

    def _title(self) -> None:
        scene = self.scene
        name = cut(scene.name, 36)
        self.y += 12
        self.marks.append(Text(EDGE, self.y, name, 15, bold=True, tip=scene.name))
        beside = EDGE + text_width(name, 15) + 12
        self.marks.append(Text(beside, self.y, scene.place, 12, prose=True, fill=GREY))
        self.y += 4
        if scene.doing:
            self._paragraph(scene.doing, 12, 2)
        if scene.doing:
            self._paragraph(self._changes(), 11, 4, GREY)
        if scene.doubt:
            self._paragraph(scene.doubt, 11, 2, RELEASED)

    def _changes(self) -> str:
        parts = []
        for change in Change:
            those = [b.number for b in self.scene.blocks.values() if change in b.changes]
            if those:
                parts.append(f"{change.value} {listed(those, MOST_LISTED)}")
        return f"Blocks {'; '.join(parts)}" if parts else "No block changed"

    # --- tables ---

    def _tables(self) -> None:
        held = [family for family in self.families if family[0].holder is not None]
        idle = [family for family in self.families if family[0].holder is None]
        long = ": a row for each request, a column for each position"
        self._heading("Block tables" if self.brief else f"Block tables{long}")
        if not held:
            self._nothing("nobody runs")
        self._section(held)
        if idle:
            long = ": nobody holds a block of these texts"
            self._heading("Cached elsewhere" if self.brief else f"Cached elsewhere{long}")
            self.positions = None
            self._section(idle)

    def _nothing(self, text: str) -> None:
        self.y += 16
        self.marks.append(Text(EDGE, self.y, text, 11, prose=True, fill=GREY))

    def _section(self, families: list[Family]) -> None:
        for family in families:
            start = family[0].start
            alike = [row.end for other in families if other[0].start == start for row in other]
            self._family(family, max(alike))

    def _family(self, family: Family, widest: int) -> None:
        """The rows with one first block, in as many bands as they need. The column heads of the
        first one reach as far as those of the `widest` family need."""
        fit = max(1, int((self.inner - self.label + GAP) // self.column))
        start, end = family[0].start, max(row.end for row in family)
        for first in range(start, max(end, start + 1), fit):
            rows = [row for row in family if row.end > first or first == start]
            self._heads(first, min(first + fit, widest if first == start else end))
            self._band(rows, first, min(first + fit, end))

    def _band(self, rows: list[Row], first: int, end: int) -> None:
        tops = [self.y]
        for row in rows:
            tops.append(tops[-1] + (IDLE_ROW if row.holder is None else ROW))
        for row, top in zip(rows, tops[:-1], strict=True):
            self._row_label(row, top, first)
        for position in range(first, end):
            x = self.left + (position - first) * self.column
            at = 0
            for box, members in groupby(rows, key=lambda row: row.box_at(position)):
                count = len(list(members))
                if box is not None:
                    spans = list(zip(rows, tops, tops[1:], strict=False))[at : at + count]
                    self._box(position, x, spans)
                at += count
        self.y = tops[-1]

    def _heads(self, first: int, end: int) -> None:
        """The positions, above the columns, unless they stand there already."""
        if self.positions == first:
            self.y += 4
            return
        self.positions = first
        self.y += 16
        for position in range(first, end):
            middle = self.left + (position - first) * self.column + (self.column - GAP) / 2
            self.marks.append(Text(middle, self.y, str(position), 8.5, "middle", fill=GREY))
        self.y += 4

    def _row_label(self, row: Row, top: float, first: int) -> None:
        if row.holder is not None:
            self.marks.append(Rect(EDGE, top + 2, 8, ROW - 4, boxes.colour(row.holder.hue)))
            if row.holder.node in self.wrong_holders:
                self._ring(Rect(EDGE - 2, top + 2, self.label - 6, ROW - 4))
        if row.start:
            self.seen.add(Sign.CUT_OFF)
        self.marks += _label(row, EDGE + 14, top, first)

    def _box(self, position: int, x: float, spans: list[tuple[Row, float, float]]) -> None:
        row, top, _ = spans[0]
        bottom = spans[-1][2]
        number = row.path[position - row.start]
        block = self.scene.blocks[number]
        place = Rect(x, top + 2, self.column - GAP, bottom - top - 4)
        stripes = tuple(
            (r.holder.hue, max(a, top + 2), min(b, bottom - 2) - max(a, top + 2))
            for r, a, b in spans
            if r.holder is not None
        )
        again = number in self.drawn
        self.drawn.add(number)
        pattern = self.patterns.get(block.namespace)
        self.marks += boxes.box(
            block, place, stripes, pattern, self._tip(block), bool(self.patterns), again
        )
        self._note(block, again)
        if number in self.wrong_blocks:
            self._ring(place)

    def _ring(self, around: Rect) -> None:
        """Ring what is wrong."""
        self.seen.add(Sign.WRONG)
        self.marks += boxes.ring(around)

    def _note(self, block: ShownBlock, again: bool) -> None:
        """Remember for the legend what occurs."""
        if block.queue is not None:
            self.seen.add(Sign.CACHED)
        elif block.ref_count > 1:
            self.seen.add(Sign.SHARED)
        else:
            self.seen.add(Sign.OWN if block.hashed else Sign.OPEN)
        if again:
            self.seen.add(Sign.AGAIN)
        if block.found is not None:
            self.seen.add(Sign.COPY)
        if block.written:
            self.seen.add(Sign.WRITTEN)

    def _tip(self, block: ShownBlock) -> str:
        """All about a block."""
        said = [f"block {block.number}"]
        if block.number in self.held_by:
            said.append(f"held by {listed(self.held_by[block.number], 8)}")
        if block.queue is not None:
            said.append(f"place {block.queue} in the free queue")
        if block.hashed:
            said.append(f"key {block.key}, depth {block.depth}")
            said.append(f"continues block {block.parent}" if block.parent is not None else "")
            said.append("its parent is gone" if block.parent is None and block.depth > 1 else "")
        else:
            said.append("no key")
        if block.copies > 1:
            said.append(f"{block.copies} copies")
        if block.namespace not in ("", "public"):
            said.append(cut(block.namespace, 100))
        if block.written:
            said.append("written by the step in flight")
        said += [change.value for change in block.changes]
        return "; ".join(filter(None, said))

    # --- free queue ---

    def _queue(self) -> None:
        scene = self.scene
        cached = sum(scene.blocks[b].hashed for b in scene.free)
        counts = f", {cached} cached, {len(scene.free) - cached} without content"
        long = "" if self.brief else counts
        self._heading(f"Free queue: {_counted(len(scene.free), 'block')}{long}")
        if not scene.free:
            self._nothing("empty: no block can be taken")
            return
        if cached < len(scene.free):
            self.seen.add(Sign.EMPTY)
        evicted = any(Change.EVICTED in scene.blocks[b].changes for b in scene.free)
        cell = max(text_width(str(b), 11) for b in scene.free) + (24 if evicted else 18)
        x, top = self.left, self.y + 4
        for place, number, text in _shortened(scene):
            wide = text_width(text, 11) + 4 if number is None else cell
            if x + wide > EDGE + self.inner and x > self.left:
                x, top = self.left, top + CHIP + 6
            middle = top + CHIP / 2
            if place == 0:
                self.marks.append(Text(EDGE, middle + 4, "taken next", 11, prose=True))
                tip = x - 6
                arrow = ((tip - 10, middle - 5), (tip, middle), (tip - 10, middle + 5))
                self.marks.append(Shape(arrow))
            else:
                self.marks.append(Strokes((((x - LINK, middle), (x, middle)),), FAINT))
                if x == self.left:
                    self.marks.append(Text(EDGE, middle + 4, f"from {place}", 10, fill=GREY))
            if number is None:
                self.marks.append(Text(x + 2, top + 15, text, 11, fill=GREY))
            else:
                self._queued(scene.blocks[number], x, top, cell)
            x += wide + LINK
        self.y = top + CHIP + 2

    def _queued(self, block: ShownBlock, x: float, top: float, cell: float) -> None:
        if block.hashed:
            self.marks.append(Rect(x, top, cell, CHIP, IDLE, tip=self._tip(block)))
            self.marks.append(Rect(x, top, cell, CHIP, None, FAINT, 1.2, DASHED))
        else:
            self.marks.append(Rect(x, top, cell, CHIP, PAPER, PLAIN, 1, tip=self._tip(block)))
        fill = INK if block.hashed else GREY
        self.marks.append(
            Text(x + cell / 2, top + 15, str(block.number), 11, "middle", block.hashed, fill=fill)
        )
        if block.written:
            # By a step whose request has left.
            self.seen.add(Sign.WRITTEN)
            self.marks.append(boxes.written(x, x + cell, top + CHIP + 2))
        self.marks += boxes.signs(block, x, top, cell, CHIP)
        if block.number in self.wrong_blocks:
            self._ring(Rect(x, top, cell, CHIP))

    # --- waiting requests ---

    def _waiting(self) -> None:
        waiting = [h for h in self.scene.holders if h.status == "waiting"]
        if not waiting:
            return
        self._heading(f"Waiting: {len(waiting)}, in serving order")
        x, lines, self.y = EDGE, 1, self.y + 4
        more = text_width(f"… {len(waiting)} more", 10.5) + 8
        for shown, holder in enumerate(waiting):
            flying = f" · {holder.in_flight} in flight" if holder.in_flight else ""
            text = f"{cut(holder.name, LONGEST_ID)} · T {holder.length}{flying}"
            wide = text_width(text, 10.5) + 14
            room = EDGE + self.inner - (more if lines == MOST_LINES else 0)
            if x + wide > room and x > EDGE:
                if lines == MOST_LINES:
                    text = f"… {len(waiting) - shown} more"
                    self.marks.append(Text(x, self.y + 15, text, 10.5, fill=GREY))
                    break
                x, lines, self.y = EDGE, lines + 1, self.y + CHIP + 5
            tip = f"{cut(holder.name, 200)}, T {holder.length}, {holder.namespace}"
            self.marks.append(Rect(x, self.y, wide, CHIP, PAPER, FRAME, 1, tip=tip))
            self.marks.append(Text(x + 7, self.y + 15, text, 10.5))
            if holder.node in self.wrong_holders:
                self._ring(Rect(x, self.y, wide, CHIP))
            x += wide + 6
        self.y += CHIP + 2

    # --- legend ---

    def _legend(self) -> None:
        entries = list(legend(self.signs, self.hues, self.patterns))
        if not entries:
            return
        marks, self.y = legend_below(entries, EDGE, self.y + 18, self.inner)
        self.marks += marks

    @property
    def hues(self) -> tuple[int, ...]:
        """The colours of those who run."""
        return tuple(h.hue for h in self.scene.holders if h.hue is not None)

    @property
    def signs(self) -> set[Sign]:
        """What occurs, changes of blocks included."""
        return self.seen | {Sign[c.name] for b in self.scene.blocks.values() for c in b.changes}


def _shortened(scene: Scene) -> Iterator[tuple[int, int | None, str]]:
    """The free queue: place, block and its number; or None and how many are left out, because they
    are many in a row of which nothing is to be told."""

    def dull(number: int) -> bool:
        block = scene.blocks[number]
        return not block.hashed and not block.changes

    place = 0
    for run_is_dull, members in groupby(scene.free, dull):
        run = list(members)
        left_out = len(run) - 2 * SHOWN_OF_RUN if run_is_dull and len(run) > LONGEST_RUN else 0
        for at, number in enumerate(run):
            if left_out and at == SHOWN_OF_RUN:
                yield place + at, None, f"… {left_out} more …"
            if not SHOWN_OF_RUN <= at < SHOWN_OF_RUN + left_out:
                yield place + at, number, str(number)
        place += len(run)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _label(row: Row, x: float, top: float, first: int) -> list[Text]:
    """What stands before a row, at length where it begins."""
    holder = row.holder
    if holder is None:
        text = "cached" if row.start == 0 else "cached, cut off"
        return [Text(x, top + 16.5, text, 10, fill=GREY)]
    name = Text(x, top + 15, cut(holder.name, LONGEST_ID), 12, bold=True, tip=holder.name)
    if first > row.start:
        return [name]
    if holder.status == "left":
        return [name, Text(x, top + 29, "held by the step", 9.5, fill=GREY)]
    flying = f" · {holder.in_flight} in flight" if holder.in_flight else ""
    counts = f"C {holder.computed} · T {holder.length}{flying}"
    return [name, Text(x, top + 29, counts, 9.5, fill=GREY)]
