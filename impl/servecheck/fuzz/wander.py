"""Walks from a seed alone, without Hypothesis.

Theory of operation. The same worlds and the same moves as `servecheck.fuzz.machine`, with a seeded
stream for all choices: half the cost a step, and a new world each time, where Hypothesis varies
each of its runs some times over. What is missing is shrinking, which `servecheck.fuzz.shrink` does.
As with Hypothesis, each walk leaves some moves out. With a `Guide` one walk in four goes the way of
an earlier one that came to something rare, and on from there; or it does something else in between,
and then goes the rest of that way as far as it still can.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from servecheck.engines.protocol import Unsupported
from servecheck.fuzz.draw import Seeded, pick
from servecheck.fuzz.guide import Guide, Start
from servecheck.fuzz.moves import MOVES, Move, fire
from servecheck.fuzz.names import NAMINGS
from servecheck.fuzz.walk import Walk
from servecheck.fuzz.worlds import Draw, anywhere, begin
from servecheck.lockstep.follow import Following
from servespec.config import Config
from servespec.policy import Policy
from servespec.properties import Property

SILENT = 8
"""Moves are left out of a walk by a chance of so many tenths, less one, at most."""
PARTS = (2, 1, 4, 2)
"""A walk is as long as it may be, or one of these parts of it: the shorter, the more worlds."""
GUIDED = 4
"""One walk in so many goes the way of an earlier one, if there is a guide: twice as many reach rare
situations later, since they are fewer that find new ones."""
BETWEEN = 2
"""Most moves that are put into the way of an earlier walk."""


class Wanderer:
    """One walk of so many moves at most, from a seed. Without `swarm` it leaves no moves out.

    Raises:
        Unsupported: the engine that follows takes none of the worlds that were drawn.
    """

    def __init__(
        self,
        seed: int,
        properties: Iterable[Property],
        config: Config | None = None,
        policy: Policy | None = None,
        following: Following | None = None,
        draw: Draw | None = None,
        guide: Guide | None = None,
        swarm: bool = True,
    ) -> None:
        self._silent = SILENT if swarm else 1
        self._chance = Seeded(seed)
        self._start: Start | None = None
        back = guide is not None and not self._chance.below(GUIDED)
        start = guide.offer(self._chance) if guide and back else None
        if start is not None:
            # The world may have moved to where the engine does not go along.
            with suppress(Unsupported):
                follower = None if following is None else following(start.machine)
                self.walk = Walk(
                    start.machine,
                    properties,
                    start.alphabet,
                    follower,
                    pick(self._chance, NAMINGS),
                )
                self._start = start
                return
        worlds = draw or anywhere(config, policy)
        self.walk = begin(self._chance, worlds, properties, following)

    def go(self, moves: int) -> Walk:
        """Walk on, for so many moves at most.

        Raises:
            PropertyFell: a property fell where it is not known to fall.
        """
        chance, walk, kinds = self._chance, self.walk, tuple(MOVES.values())
        start = self._start
        if start is not None:
            walk.replay(start.actions, start.elsewhere)
        if start is not None and start.rest:
            walk.leave_ids_to(start.rest)
            for _ in range(1 + chance.below(BETWEEN)):
                self._one(kinds)
            walk.along(start.rest)
        silent = chance.below(self._silent)
        offered = tuple(kind for kind in kinds if chance.below(10) >= silent)
        for _ in range(max(moves // pick(chance, PARTS), 1)):
            self._one(offered)
        return walk

    def _one(self, offered: Sequence[Move]) -> None:
        """One of these moves, or of all if none of them is enabled."""
        chance, walk = self._chance, self.walk
        enabled = [kind for kind in offered if kind.enabled(walk)]
        if not enabled:
            enabled = [kind for kind in MOVES.values() if kind.enabled(walk)]
        fire(pick(chance, enabled), walk, chance)
