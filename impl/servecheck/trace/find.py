"""Finds runs on which a property falls, and makes the traces that are committed of them.

Theory of operation. A seeded walk takes enabled actions at random, with payloads of few and few
different tokens so that prefixes are shared, and begins anew every few steps; it ends at the first
fall. Of what several seeds find the smallest is kept, once shrunk, and the machine is shrunk with
it. The result depends on the seeds and the machine alone.

    python -m servecheck.trace.find traces/falls            # writes every committed trace anew
    python -m servecheck.trace.find traces/falls CON-1 …    # only these

There is one for each condition under which a property is known to fall (`TARGETS`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from attrs import define, evolve, frozen

from servecheck.trace.lasso import WATCHED
from servecheck.trace.machines import shrink_world
from servecheck.trace.model import Verdict
from servecheck.trace.shrink import StillFails, adapted, fall_in, falls, shrink
from servecheck.trace.simpler import Actions, size_of
from servecheck.trace.write import record
from servespec.actions import Abort, Action, Complete, Discard, Output, ResetCache, Schedule, Submit
from servespec.chain import Tokens
from servespec.config import Config, usable_blocks
from servespec.machine import Machine, acceptable
from servespec.plan import State
from servespec.policy import (
    MINIATURE,
    VLLM_0_33,
    Admission,
    AfterPreemption,
    Order,
    Policy,
    StepMix,
    Victim,
    prioritised,
)
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


# --- the committed traces ------------------------------------------------------------------


@frozen
class Target:
    """One trace to commit: a property, and a machine under which it falls."""

    property_id: str
    name: str
    """Of the trace, whose file is NAME.jsonl."""
    config: Config
    """Where the search begins; sizes are shrunk with the run."""
    policy: Policy
    wanted: Callable[[Machine], bool] = lambda machine: True
    """What a smaller machine must still be."""

    @property
    def machine(self) -> Machine:
        return Machine(self.config, self.policy)

    def fails(self, machine: Machine) -> StillFails:
        """The question whether the property falls, asked of machines that are wanted."""
        asked = falls(machine, self.property_id)
        return asked if self.wanted(machine) else lambda actions: False


def longest_text_fits(machine: Machine) -> bool:
    """What vLLM checks when it starts: a text of max_model_len tokens fits into the pool."""
    config = machine.config
    return config.blocks_for(config.max_model_len) <= usable_blocks(config, machine.policy)


_CHUNKS = Config(7, 1, 12, 5, 3, long_prefill_token_threshold=3)
"""A victim must have been given two blocks in the very pass, and others room in its budget."""
_DRAFTS = Config(8, 2, 12, 4, 3, long_prefill_token_threshold=2, num_speculative_tokens=1)

TARGETS = (
    Target("CON-1", "CON-1", _CHUNKS, prioritised(VLLM_0_33)),
    Target("CON-1r", "CON-1r", _CHUNKS, prioritised(VLLM_0_33)),
    Target("CON-3", "CON-3", _CHUNKS, prioritised(VLLM_0_33)),
    Target("BUD-2", "BUD-2", _DRAFTS, VLLM_0_33),
    Target(
        "BUD-2",
        "BUD-2-prefill-first",
        Config(8, 1, 12, 4, 3),
        evolve(VLLM_0_33, step_mix=StepMix.PREFILL_FIRST),
    ),
    Target(
        "BUD-2",
        "BUD-2-no-victim",
        Config(7, 2, 12, 6, 4),
        evolve(VLLM_0_33, victim=Victim.NONE),
    ),
    Target(
        "BUD-2",
        "BUD-2-given-back",
        Config(7, 2, 14, 3, 2),
        evolve(
            prioritised(VLLM_0_33),
            admission=Admission.STEP,
            after_preemption=AfterPreemption.GO_ON,
        ),
    ),
    Target("EVI-1", "EVI-1", Config(6, 2, 12, 8, 3), MINIATURE),
    Target("LIV-1", "LIV-1", Config(6, 2, 6, 4, 3), VLLM_0_33, longest_text_fits),
    Target(
        "LIV-1",
        "LIV-1-no-victim",
        Config(6, 1, 6, 6, 3),
        evolve(MINIATURE, victim=Victim.NONE),
    ),
)
"""One for each condition under which a property is known to fall."""

SEEDS = 8
"""Searches of which the smallest result is taken."""


def smallest(target: Target, seeds: Sequence[int] = range(SEEDS)) -> tuple[Machine, Actions] | None:
    """The smallest run, and the smallest machine, that searches from these seeds come to."""
    machine = target.machine
    fails = target.fails(machine)
    found = (find(target.property_id, machine, seed) for seed in seeds)
    shrunk = [shrink(machine, actions, fails) for actions in found if actions is not None]
    if not shrunk:
        return None
    return shrink_world(machine, min(shrunk, key=size_of), target.fails)


def commit(target: Target, folder: Path) -> Path:
    """Search, and write the trace of what is found, with a snapshot on every line.

    Raises:
        LookupError: the property did not fall.
        TraceError: the file cannot be written.
    """
    found = smallest(target)
    if found is None:
        raise LookupError(f"{target.property_id} did not fall in {SEEDS} searches ({target.name})")
    machine, actions = found
    path = folder / f"{target.name}.jsonl"
    what = fall_in(machine, target.property_id, actions)
    record(path, machine, actions, Verdict("falls", target.property_id, what), snapshot_every=1)
    return path


def main(folder: str = "", *names: str) -> None:
    known = [target.name for target in TARGETS]
    if not folder or not set(names) <= set(known):
        raise SystemExit(f"usage: python -m servecheck.trace.find FOLDER [{' | '.join(known)}] …")
    for target in TARGETS:
        if not names or target.name in names:
            print(commit(target, Path(folder)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
