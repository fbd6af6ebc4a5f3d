"""Where it pays to search: walks that go back to what was rare.

Theory of operation. Marks say which situations were reached, and how often. What is reached once in
ten thousand steps is reached by luck alone, and whatever can only go wrong there goes unseen. So a
`Guide` keeps, of each mark, some programs that led to it, the shortest of each world, and offers
them as starts: up to a little before the situation, then another continuation; in a world of other
sizes; or with something else put in, and then the rest of the way. The rarer a mark, the sooner its
starts are offered; a start that makes it common gives way to others, those of a policy that has
many first. All of it is a function of what was learned and of chance, so a campaign of a seed does
the same again.

    Walk ends ──▶ learn ──▶ mark: world, actions ──▶ offer(chance) ──▶ Start ──▶ replayed, walked on
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from attrs import define, evolve, field, frozen

from servecheck.fuzz.draw import TIGHTENED, Chance, neighbour, pick, tightened
from servecheck.marks import Mark
from servecheck.trace.shrink import mend
from servespec.actions import Action, Schedule
from servespec.config import Config
from servespec.errors import ActionDisabled, ConfigError
from servespec.machine import Machine

if TYPE_CHECKING:
    from servecheck.fuzz.walk import Walk

RARE = 12
"""Marks, the rarest ones, to whose starts a walk goes back."""
KEPT = 12
"""Starts kept of a mark; the oldest of the policy that has most of them goes."""
LONGEST = 60
"""Actions of a start; longer ones cost more than they bring."""
BACK = (1, 2, 4, 3, 6, 9, 0)
"""Actions before the situation at which the walk goes its own way; 0: it begins anew."""
WAITING = 48
"""Most starts, each with a limit, that wait to be gone through once more; the oldest goes."""


@frozen
class Start:
    """A world, and actions that are legal in it, in the order in which they were carried out."""

    machine: Machine
    alphabet: int
    actions: tuple[Action, ...]
    elsewhere: bool = False
    """The world is not the one in which it was found, so it may come to other situations."""
    rest: tuple[Action, ...] = ()
    """What comes after them, once something else has been done in between, as far as it can."""


@define
class Guide:
    """What was reached, how often, and how."""

    counts: Counter[Mark] = field(factory=Counter)
    starts: dict[Mark, dict[Machine, Start]] = field(factory=dict)
    """Of each mark, by world."""
    waiting: deque[tuple[Start, int]] = field(factory=lambda: deque(maxlen=WAITING))
    """Starts that are still to be gone through with a limit tightened, and which."""
    fixed: frozenset[str] = frozenset()
    """Sizes that stay as they are."""

    @property
    def rarest(self) -> list[Mark]:
        """The marks that were reached least often."""
        return sorted(self.starts, key=lambda mark: (self.counts[mark], mark.name))[:RARE]

    def learn(self, walk: Walk) -> None:
        """Take in a walk that has ended."""
        self.counts.update(walk.marks)
        first = {mark: count for mark, count in walk.first.items() if count <= LONGEST}
        for mark in first:
            self.starts.setdefault(mark, {})
        rarest = self.rarest
        for mark, count in first.items():
            known = self.starts[mark]
            shorter = known.get(walk.machine)
            if shorter is not None and len(shorter.actions) <= count:
                continue
            known.pop(walk.machine, None)
            start = Start(walk.machine, walk.alphabet, tuple(walk.actions[:count]))
            known[walk.machine] = start
            if mark in rarest and isinstance(start.actions[-1], Schedule):
                self.waiting.extend((start, way) for way in range(len(TIGHTENED)))
            if len(known) > KEPT:
                del known[_one_of_many(known)]

    def offer(self, chance: Chance) -> Start | None:
        """A start near one of the rarest situations; None if nothing was learned."""
        rarest = self.rarest
        if not rarest:
            return None
        if chance.below(2) and (tight := self._tightened()) is not None:
            return tight
        start = pick(chance, tuple(self.starts[pick(chance, rarest)].values()))
        back = pick(chance, BACK)
        upto = max(len(start.actions) - back, 0) if back else 0
        way = chance.below(3)
        if way == 0:
            return evolve(start, actions=start.actions[:upto])
        if way == 1:
            return evolve(start, actions=start.actions[:upto], rest=start.actions[upto:])
        machine = start.machine
        return _elsewhere(
            start, neighbour(chance, machine.config, machine.policy, self.fixed), upto
        )

    def _tightened(self) -> Start | None:
        """The next start that waits for it, with a limit moved to what its last pass used."""
        while self.waiting:
            start, way = self.waiting.popleft()
            machine, state = start.machine, start.machine.initial()
            with suppress(ActionDisabled):  # the way of an engine whose state was adopted
                for action in start.actions:
                    state = machine.apply(state, action).state
            name, config = tightened(machine.config, machine.policy, state, way)
            if name not in self.fixed and config != machine.config:
                return _elsewhere(start, config, len(start.actions))
        return None


def _one_of_many(known: Iterable[Machine]) -> Machine:
    """The first whose policy is that of most."""
    policies = Counter(machine.policy for machine in known)
    return max(known, key=lambda machine: policies[machine.policy])


def _elsewhere(start: Start, config: Config, upto: int) -> Start:
    """A start with other sizes, if they are possible, up to an action."""
    machine, actions = start.machine, start.actions[:upto]
    with suppress(ConfigError):
        machine = Machine(config, machine.policy)
        actions = mend(machine, actions)
    return Start(machine, start.alphabet, actions, elsewhere=machine != start.machine)
