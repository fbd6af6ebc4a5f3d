"""Finds runs on which a property falls, by chance: what exhaustive search cannot reach, and what
shrinking is tried on.

Theory of operation. A seeded walk takes enabled actions at random, with payloads of few and few
different tokens so that prefixes are shared, and begins anew every few steps; it ends at the first
fall. The result depends on the seed and the machine alone. The committed falls are made by
`explore.falls`, which finds the shortest.
"""

from __future__ import annotations

from random import Random

from attrs import define

from servecheck.trace.lasso import WATCHED
from servecheck.trace.shrink import adapted
from servecheck.trace.simpler import Actions
from servespec.actions import Abort, Action, Complete, Discard, Output, ResetCache, Schedule, Submit
from servespec.chain import Tokens
from servespec.machine import Machine, acceptable
from servespec.plan import State
from servespec.policy import Order
from servespec.properties import Fall, step_of

ALPHABET = 2
"""Tokens that there are."""
MOST_LIVE = 4
LONGEST_OUTPUT = 3
STEPS = 40
"""Actions from one beginning to the next."""
RUNS = 20_000


@define
class _Walk:
    """Draws enabled actions."""

    machine: Machine
    random: Random
    came: int = 0

    def below(self, n: int) -> int:
        # Not randrange, whose algorithm may change: random() is fixed for a seed.
        return int(self.random.random() * n)

    def often(self, percent: int) -> bool:
        return self.below(100) < percent

    def tokens(self, count: int) -> Tokens:
        return tuple(self.below(ALPHABET) for _ in range(count))

    def next(self, state: State) -> Action:
        """An action that this state offers."""
        live = state.live
        if len(live) < MOST_LIVE and self.often(30 if live else 90):
            return self.submit()
        if live and self.often(3):
            return Abort(live[self.below(len(live))].id)
        if self.often(2):
            return ResetCache(self.often(50))
        if len(state.in_flight) < self.machine.config.max_steps_in_flight:
            return Schedule()
        if self.machine.can_discard and self.often(10):
            return Discard()
        return self.complete(state)

    def submit(self) -> Submit:
        config = self.machine.config
        name, self.came = f"r{self.came}", self.came + 1
        longest = min(3 * config.block_size + 2, config.max_model_len)
        ordered = self.machine.policy.order is Order.PRIORITY
        return Submit(
            name,
            self.tokens(1 + self.below(longest)),
            1 + self.below(LONGEST_OUTPUT),
            priority=self.below(2) if ordered else 0,
            with_last=self.often(30),
        )

    def complete(self, state: State) -> Complete:
        """Any outcome of the oldest plan."""
        most = self.machine.config.num_speculative_tokens
        said = []
        for entry in state.in_flight[0].entries:
            right = entry.drafts[: self.below(acceptable(entry) + 1)]
            said.append(Output(entry.id, right + self.tokens(1), self.tokens(self.below(most + 1))))
        return adapted(self.machine, state, Complete(tuple(said)))


def find(property_id: str, machine: Machine, seed: int, runs: int = RUNS) -> Actions | None:
    """Actions up to the first fall of a property that a seeded walk meets, or None."""
    asked = WATCHED[property_id]
    random = Random(seed)
    for _ in range(runs):
        walk, state = _Walk(machine, random), machine.initial()
        monitor = asked.start(machine, state)
        actions: list[Action] = []
        for _ in range(STEPS):
            action = walk.next(state)
            actions.append(action)
            moved = machine.apply(state, action)
            monitor, outcome = monitor.after(step_of(machine, state, action, moved))
            if isinstance(outcome, Fall):
                return tuple(actions)
            state = moved.state
    return None
