"""Rows of several seeds as figures: what is usual, and what is worst.

Theory of operation. A pair is an entry with a seed. Where nothing was found the cost is unknown,
and counts as more than any other: a median or a worst case that is such a one is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from attrs import frozen

from servecheck.zoo.rows import INDISTINGUISHABLE, Kill, Row, latest

N = TypeVar("N", int, float)

AIMS = {"cpu": "< 1", "worst cpu": "< 60", "program": "≤ 8"}
"""Of the medians over all pairs, and of the worst: CPU seconds, and actions."""


@frozen
class Spread:
    """The upper median of a cost, and the worst."""

    middle: float | None
    worst: float | None


@frozen
class Totals:
    """What came of all pairs that are not masked."""

    pairs: int
    seeds: int
    killed: int
    """By comparison, or by the properties;"""
    compared: int
    """those by comparison."""
    cpu: Spread
    """Seconds to the first failure: of the comparison, or of the properties where it found none."""
    steps: Spread
    """Of the same."""
    program: Spread
    """Actions of the smallest program that was found."""


def spread(values: Iterable[N | None]) -> Spread:
    """The median and the worst of some costs; none is worse than None."""
    found = sorted((value is None, value or 0) for value in values)
    if not found:
        return Spread(None, None)
    middle, worst = (
        (None if none else value) for none, value in (found[len(found) // 2], found[-1])
    )
    return Spread(middle, worst)


def by_entry(rows: Iterable[Row]) -> dict[str, tuple[Row, ...]]:
    """The latest row of each pair, by entry: that which was tried at length, then by seed."""
    found: dict[str, list[Row]] = {}
    for row in sorted(latest(rows).values(), key=lambda row: (bool(row.chance_only), row.seed)):
        found.setdefault(row.entry, []).append(row)
    return {entry: tuple(mine) for entry, mine in found.items()}


def totals(rows: Sequence[Row]) -> Totals:
    """The figures of these rows."""
    pairs = [row for row in rows if row.verdict != INDISTINGUISHABLE]

    def first(cost: Callable[[Kill], N]) -> Spread:
        return spread(None if row.first is None else cost(row.first) for row in pairs)

    return Totals(
        pairs=len(pairs),
        seeds=len({row.seed for row in pairs}),
        killed=sum(row.first is not None for row in pairs),
        compared=sum(row.spec is not None for row in pairs),
        cpu=first(lambda kill: kill.cpu),
        steps=first(lambda kill: kill.steps),
        program=spread(row.program for row in pairs if row.program is not None),
    )
