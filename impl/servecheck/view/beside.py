"""Two states side by side: what should be, and what is; with rings around what is wrong.

Theory of operation. Each side is laid out as every scene is (`layout`), in few words, and put into
a frame of its own; above stands what was done, below what tells the two apart in lines of text, and
one legend for both. What is ringed follows from the two scenes alone (`wrong`): a block that
differs in any of what a picture shows of it, and a request that does. A block that is in no place
has no box to ring, and is told in a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

from servecheck.view.boxes import PAPER, PLAIN, WRONG
from servecheck.view.layout import EDGE, Layout
from servecheck.view.legend import legend, legend_below
from servecheck.view.marks import GREY, INK, Drawing, Mark, Rect, Text, moved
from servecheck.view.scene import Holder, Scene, ShownBlock
from servecheck.view.words import cut, listed, wrapped

NARROWEST = 380.0
"""Width of a side, at least: its caption has room."""
BETWEEN = 14.0
CAPTION = 42.0
"""Height of a caption and its note."""
PAGE_EDGE = 12.0
MOST_LISTED = 8


@frozen
class Side:
    """One state, and whose it is."""

    caption: str
    note: str
    """Of what no table shows."""
    scene: Scene


def beside(
    title: str, doing: str, said: Side, held: Side, differences: Sequence[str] = ()
) -> Drawing:
    """The picture of two states after `doing`, one line for each of the differences."""
    blocks, holders = wrong(said.scene, held.scene)
    sides = (Layout(said.scene, True), Layout(held.scene, True, blocks, holders))
    for side in sides:
        side.holdings()
    width = max(NARROWEST, *(side.page for side in sides))
    inner = 2 * width + BETWEEN
    marks, y = _paragraphs(
        ((title, 14, True, INK), (doing, 11.5, False, GREY)), inner, PAGE_EDGE - 4
    )
    top, tall = y + 10, CAPTION + max(side.y for side in sides) - EDGE + 16
    for at, (side, whose) in enumerate(zip(sides, (said, held), strict=True)):
        left = PAGE_EDGE + at * (width + BETWEEN)
        marks += _frame(whose, Rect(left, top, width, tall), WRONG if at else INK)
        marks += (moved(mark, left, top + CAPTION - EDGE) for mark in side.marks)
    lost = [b for b in nowhere(held.scene) if b not in nowhere(said.scene)]
    missing = f"neither free nor in a table: {listed(lost, MOST_LISTED)}"
    lines = (*differences, missing) if lost else differences
    told, y = _paragraphs(((line, 11, False, WRONG) for line in lines), inner, top + tall + 4)
    marks += told
    one, other = sides
    hues = tuple(dict.fromkeys(one.hues + other.hues))
    entries = list(legend(one.signs | other.signs, hues, one.patterns | other.patterns))
    if entries:
        below, y = legend_below(entries, PAGE_EDGE, y + 12, inner)
        marks += below
    return Drawing(inner + 2 * PAGE_EDGE, y + PAGE_EDGE, f"{title}: {doing}", tuple(marks))


def _frame(side: Side, place: Rect, ink: str) -> tuple[Mark, ...]:
    """The frame of a side, and what stands in its head."""
    x, y = place.x + EDGE, place.y
    pen = PLAIN if ink == INK else ink
    note = cut(side.note, int((place.width - 2 * EDGE) / (0.6 * 10.5)))
    return (
        Rect(place.x, y, place.width, place.height, PAPER, pen, 1.4),
        Text(x, y + 21, side.caption, 12.5, bold=True, prose=True, fill=ink),
        Text(x, y + 37, note, 10.5, fill=GREY),
    )


def _paragraphs(
    texts: Iterable[tuple[str, float, bool, str]], width: float, y: float
) -> tuple[list[Mark], float]:
    """Texts one under the other, each of two lines at most; and where they end."""
    marks: list[Mark] = []
    for text, size, bold, fill in texts:
        for line in wrapped(text, int(width / (0.6 * size)), 2):
            y += size + 5
            marks.append(Text(PAGE_EDGE, y, line, size, bold=bold, fill=fill))
    return marks, y


# --- what is wrong -------------------------------------------------------------------------------


def wrong(said: Scene, held: Scene) -> tuple[frozenset[int], frozenset[str]]:
    """The blocks and the holders, by their nodes, in which the second scene differs."""
    blocks = {b for b, block in held.blocks.items() if _block(block) != _block(said.blocks[b])}
    if set(said.free) == set(held.free):
        blocks.update(b for one, b in zip(said.free, held.free, strict=True) if one != b)
    expected = {holder.node: holder for holder in said.holders}
    holders = set()
    for holder in held.holders:
        due = expected.get(holder.node)
        if due is None or _holder(due) != _holder(holder):
            holders.add(holder.node)
        if due is not None:
            pairs = enumerate(holder.table)
            blocks.update(b for at, b in pairs if due.table[at : at + 1] != (b,))
    return frozenset(blocks), frozenset(holders)


def nowhere(scene: Scene) -> tuple[int, ...]:
    """The blocks that are neither free nor in a table."""
    held = {block for holder in scene.holders for block in holder.table}
    return tuple(b for b, block in scene.blocks.items() if block.queue is None and b not in held)


def _block(block: ShownBlock) -> tuple[object, ...]:
    """What a picture shows of a block, but for its place in the queue and what became of it."""
    shown = block.key, block.namespace, block.ref_count, block.copies
    return (*shown, block.queue is None, block.written)


def _holder(holder: Holder) -> tuple[object, ...]:
    """What a picture shows of a request, but for its blocks."""
    return holder.status, holder.computed, holder.length, holder.in_flight
