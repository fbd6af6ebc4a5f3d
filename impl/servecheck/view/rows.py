"""The rows of a picture: one for each text in the pool, those that begin alike side by side.

A row is the table of a holder, or a run of cached blocks that nobody holds, behind the held blocks
that it continues. Rows that share their first blocks share their boxes, so all rows together are
the tree of prefixes, read line by line. At each fork of it holders stand first, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from attrs import evolve, frozen

from servecheck.view.scene import Holder, Scene


@frozen
class Row:
    """A text in the pool."""

    holder: Holder | None
    """None: nobody holds its last block."""
    start: int
    """Position of its first block in the text: not 0 where what comes before is gone."""
    path: tuple[int, ...]
    """Its blocks."""
    boxes: tuple[int, ...] = ()
    """A number for the box of each block: the same in all rows that share it."""

    @property
    def end(self) -> int:
        """The position behind its last block."""
        return self.start + len(self.path)

    def box_at(self, position: int) -> int | None:
        """The box at a position in the text."""
        return self.boxes[position - self.start] if self.start <= position < self.end else None


Family = tuple[Row, ...]
"""Rows with the same first block."""


def families_of(scene: Scene) -> list[Family]:
    """All rows, by family: those with a holder first."""
    holders = [h for h in scene.holders if h.status != "waiting"]
    rows = [Row(h, 0, h.table) for h in holders]
    rows += _idle_rows(scene, holders)
    boxes: dict[tuple[int, int, int], int] = {}
    firsts: list[int] = []  # for each box the first row that has it
    found: list[tuple[tuple[int, ...], Row]] = []
    for number, row in enumerate(rows):
        mine: list[int] = []
        above = -1
        for block in row.path:
            box = boxes.setdefault((above, row.start, block), len(boxes))
            if box == len(firsts):
                firsts.append(number)
            mine.append(box)
            above = box
        order = tuple(firsts[box] for box in mine) or (number,)
        found.append((order, evolve(row, boxes=tuple(mine))))
    found.sort(key=lambda pair: pair[0])
    return [
        tuple(row for _, row in family) for _, family in groupby(found, key=lambda pair: pair[0][0])
    ]


def _idle_rows(scene: Scene, holders: Sequence[Holder]) -> Iterator[Row]:
    """A row for each cached block that nobody holds and that no other such block continues."""
    tables: dict[int, tuple[int, ...]] = {}
    for holder in holders:
        for position, block in enumerate(holder.table):
            tables.setdefault(block, holder.table[: position + 1])
    idle = {b.number for b in scene.blocks.values() if b.hashed and b.number not in tables}
    continued = {scene.blocks[b].parent for b in idle}
    rows = []
    for last in idle - continued:
        path = [last]
        parent = scene.blocks[last].parent
        while parent is not None and parent in idle:
            path.append(parent)
            parent = scene.blocks[parent].parent
        before = () if parent is None else tables.get(parent, ())
        whole = (*before, *reversed(path))
        rows.append((path[::-1], Row(None, scene.blocks[last].depth - len(whole), whole)))
    # By number: what was taken first comes first.
    yield from (row for _, row in sorted(rows, key=lambda pair: pair[0]))
