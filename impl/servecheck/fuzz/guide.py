"""Where it pays to search: walks that go back to what was rare.

Theory of operation. Marks say which situations were reached, and how often. What is reached once in
ten thousand steps is reached by luck alone, and whatever can only go wrong there goes unseen. So a
`Guide` keeps, of each mark, some programs that led to it, the shortest of each world, and offers
them as starts: the same world, the same actions up to a little before the situation, then another
continuation. The rarer a mark, the sooner its starts are offered; a start that makes it common
gives way to others. All of it is a function of what was learned and of chance, so a campaign of a
seed does the same again.

    Walk ends ──▶ learn ──▶ mark: world, actions ──▶ offer(chance) ──▶ Start ──▶ replayed, walked on
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from servecheck.fuzz.draw import Chance, neighbour, pick
from servecheck.marks import Mark
from servecheck.trace.shrink import mend
from servespec.actions import Action
from servespec.errors import ConfigError
from servespec.machine import Machine

if TYPE_CHECKING:
    from servecheck.fuzz.walk import Walk

RARE = 12
"""Marks, the rarest ones, to whose starts a walk goes back."""
KEPT = 12
"""Starts kept of a mark; the oldest goes."""
LONGEST = 60
"""Actions of a start; longer ones cost more than they bring."""
BACK = (1, 2, 4, 3, 6, 9, 0)
"""Actions before the situation at which the walk goes its own way; 0: it begins anew."""


@frozen
class Start:
    """A world, and actions that are legal in it, in the order in which they were carried out."""

    machine: Machine
    alphabet: int
    actions: tuple[Action, ...]


@define
class Guide:
    """What was reached, how often, and how."""

    counts: Counter[Mark] = field(factory=Counter)
    starts: dict[Mark, dict[Machine, Start]] = field(factory=dict)
    """Of each mark, by world."""
    fixed: frozenset[str] = frozenset()
    """Sizes that stay as they are."""

    def learn(self, walk: Walk) -> None:
        """Take in a walk that has ended."""
        self.counts.update(walk.marks)
        for mark, count in walk.first.items():
            if count > LONGEST:
                continue
            known = self.starts.setdefault(mark, {})
            shorter = known.get(walk.machine)
            if shorter is not None and len(shorter.actions) <= count:
                continue
            known.pop(walk.machine, None)
            known[walk.machine] = Start(walk.machine, walk.alphabet, tuple(walk.actions[:count]))
            if len(known) > KEPT:
                del known[next(iter(known))]

    def offer(self, chance: Chance) -> Start | None:
        """A start near one of the rarest situations; None if nothing was learned."""
        rarest = sorted(self.starts, key=lambda mark: (self.counts[mark], mark.name))[:RARE]
        if not rarest:
            return None
        start = pick(chance, tuple(self.starts[pick(chance, rarest)].values()))
        back = pick(chance, BACK)
        upto = max(len(start.actions) - back, 0) if back else 0
        machine, actions = start.machine, start.actions[:upto]
        if chance.below(2):
            try:
                machine = Machine(
                    neighbour(chance, machine.config, machine.policy, self.fixed), machine.policy
                )
            except ConfigError:
                pass
            else:
                actions = mend(machine, actions)
        return Start(machine, start.alphabet, actions)
