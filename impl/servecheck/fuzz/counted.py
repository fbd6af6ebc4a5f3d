"""What walks did, counted in memory that has a bound, by whatever driver.

Theory of operation. A walk that has ended is counted once, by whoever walked it. Worlds are told
apart by digests, of which there is a most, and the marks that they allow are kept with them. What
others have counted, in another process perhaps, is merged: sums, and sets.

    Walk ──▶ Counted.add ──▶ Counted.merge ──▶ summary
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING

from attrs import define, field

from servecheck.marks import Mark, possible
from servecheck.trace.codec import canonical

if TYPE_CHECKING:
    from servecheck.fuzz.walk import Walk

MOST_WORLDS = 100_000
"""Worlds that are told apart; what comes after these is not counted."""
HOPELESS = 20
"""Walks without a world in a row, at the start, after which the engine is held to take none."""


@define
class Counted:
    """What walks did."""

    runs: int = 0
    steps: int = 0
    """Transitions after which every property was asked."""
    moves: Counter[str] = field(factory=Counter)
    marks: Counter[Mark] = field(factory=Counter)
    checked: Counter[str] = field(factory=Counter)
    """How often the antecedent of each property was true."""
    known: Counter[str] = field(factory=Counter)
    """Falls that the registry knows, by property."""
    worlds: set[bytes] = field(factory=set)
    """Digests of pairs of sizes and choices."""
    able: set[Mark] = field(factory=set)
    """Marks that the sizes and choices of some walk allow."""
    skipped: int = 0
    """Walks that found no world that the engine takes."""

    @property
    def more_worlds(self) -> bool:
        """There may have been more worlds than are told apart."""
        return len(self.worlds) >= MOST_WORLDS

    def add(self, walk: Walk) -> None:
        """Count one walk that has ended."""
        self.runs += 1
        self.steps += len(walk.actions)
        self.moves.update(walk.moves)
        self.marks.update(walk.marks)
        self.checked.update(walk.watch.checked)
        self.known.update(walk.known)
        world = walk.config, walk.policy
        digest = blake2b(canonical(world), digest_size=8).digest()
        if digest not in self.worlds and not self.more_worlds:
            self.worlds.add(digest)
            self.able.update(possible(*world))

    def skip(self) -> bool:
        """Count a walk without a world; whether the engine is held to take none at all."""
        self.skipped += 1
        return not self.runs and self.skipped >= HOPELESS

    def merge(self, other: Counted) -> None:
        """Count what another one has counted."""
        self.runs += other.runs
        self.steps += other.steps
        self.moves.update(other.moves)
        self.marks.update(other.marks)
        self.checked.update(other.checked)
        self.known.update(other.known)
        if not self.more_worlds:
            self.worlds.update(sorted(other.worlds)[: MOST_WORLDS - len(self.worlds)])
        self.able |= other.able
        self.skipped += other.skipped
