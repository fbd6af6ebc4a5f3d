"""Walks at random, vLLM beside the specification, up to the first divergence.

    python -m servecheck.engines.vllm --level state --operations 100000 --seed 0

Theory of operation. A walk is one of the fuzzer's (`servecheck.fuzz`): it draws sizes and choices
that vLLM can have, then moves among what the specification offers; vLLM follows every action
(`servecheck.lockstep`) and all that it shows is compared after each. At L3 an operation is an
action. At L1 it is a verb of the pool; there the specification's scheduler decides, so only the
pool's choices are vLLM's, and all others are drawn freely. The walks of a seed are always the same;
how many there are depends on the operations asked for.

Whether vLLM's scheduler agrees says nothing of a situation in which it never was, so the marks that
the walks reached are counted, and those that they could have reached and did not are named.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from time import monotonic

from attrs import define, evolve, field

from servecheck.engines.protocol import EngineError, EngineFactory, Level, Unsupported
from servecheck.engines.vllm.adapters import VllmLoop, VllmPool
from servecheck.engines.vllm.theirs import VERSION, load
from servecheck.fuzz.draw import Chance, Seeded, draw_config, fitting, pick, varied
from servecheck.fuzz.tell import tell_config, tell_policy, tell_program
from servecheck.fuzz.walk import Walk
from servecheck.fuzz.wander import Wanderer
from servecheck.lockstep.follow import Diverged, EngineFollower, allowed, follower
from servecheck.marks import Mark, marks_of, possible
from servecheck.trace.shrink import StillFails, shrink_world
from servespec.actions import Action, Schedule
from servespec.config import Config
from servespec.events import (
    Admitted,
    BlockStored,
    CacheCleared,
    Event,
    Finished,
    Preempted,
    Scheduled,
)
from servespec.machine import Machine
from servespec.policy import VLLM_0_33, Admission, Order, Policy, Sharing, prioritised
from servespec.properties import step_of

MOVES = 200
"""Of a walk."""
STRIDE = 1_000_003
"""Walks of a seed lie so far from those of the next."""
KEEP = (12, 0)
"""How much a policy at L1 keeps to vLLM's in what its pool does not decide."""

ENGINES: dict[Level, EngineFactory] = {Level.POOL: VllmPool, Level.STATE: VllmLoop}


# --- worlds --------------------------------------------------------------------------------


def drawn(chance: Chance, level: Level) -> tuple[Config, Policy]:
    """Sizes and choices that vLLM can have at this level: 4 to 12 blocks of 1, 2 or 4 tokens."""
    base = pick(chance, (VLLM_0_33, prioritised(VLLM_0_33)))
    switched = evolve(
        base,
        sharing=pick(chance, (Sharing.FULL_BLOCKS,) * 3 + (Sharing.OFF,)),
        admission=pick(chance, (Admission.WHOLE_TEXT, Admission.STEP)),
        chunked_prefill=pick(chance, (True, True, False)),
    )
    policy = switched if level is Level.STATE else with_their_pool(chance, switched)
    sizes = draw_config(chance, policy)
    config = evolve(sizes, num_blocks=policy.first_block + 4 + chance.below(9))
    if config.long_prefill_token_threshold > config.max_model_len:
        config = evolve(config, long_prefill_token_threshold=0)
    return config, policy if level is Level.STATE else fitting(config, policy)


def with_their_pool(chance: Chance, policy: Policy) -> Policy:
    """Any policy whose pool is vLLM's."""
    return evolve(
        varied(chance, policy, pick(chance, KEEP)),
        sharing=policy.sharing,
        lookup=policy.lookup,
        null_block=policy.null_block,
        free_walk=policy.free_walk,
        unhashed=policy.unhashed,
    )


# --- walks ---------------------------------------------------------------------------------


def verbs(event: Event) -> int:
    """How many verbs of the pool an event stands for."""
    match event:
        case Admitted():
            return 2  # match, acquire
        case Scheduled(new_blocks=blocks):
            return bool(blocks)
        case BlockStored() | Preempted() | Finished() | CacheCleared():
            return 1
    return 0


@define
class Together(Walk):
    """A walk along which vLLM goes; what it cannot do is left out."""

    beside: EngineFollower = field(kw_only=True)
    verbs: int = field(init=False, default=0)

    def do(self, action: Action) -> None:
        if not self.beside.allows(self.machine, self.state, action):
            return
        before = self.state
        moved = self.machine.apply(before, action)
        step = step_of(self.machine, before, action, moved)
        self.actions.append(action)
        self.beside.follow(step)
        self.state = moved.state
        self.marks.update(marks_of(step))
        self.verbs += sum(map(verbs, moved.events))
        self._remember(before, moved.events)


@define
class Tally:
    """What all walks did."""

    level: Level
    walks: int = 0
    verbs: int = 0
    actions: Counter[str] = field(factory=Counter)
    compared: Counter[str] = field(factory=Counter)
    unseen: Counter[str] = field(factory=Counter)
    marks: Counter[Mark] = field(factory=Counter)
    able: set[Mark] = field(factory=set)
    orders: Counter[Order] = field(factory=Counter)

    def add(self, walk: Together) -> None:
        self.walks += 1
        self.verbs += walk.verbs
        self.actions.update(type(action).__name__ for action in walk.actions)
        self.compared.update(walk.beside.comparison.compared)
        self.unseen.update(walk.beside.comparison.unseen)
        self.marks.update(walk.marks)
        self.able.update(possible(walk.config, walk.policy))
        self.orders[walk.policy.order] += 1

    @property
    def operations(self) -> int:
        return self.verbs if self.level is Level.POOL else self.actions.total()


def walked(level: Level, number: int, tally: Tally) -> Diverged | None:
    """One walk; what it diverged by, made small."""
    config, policy = drawn(Seeded(number), level)
    machine = Machine(config, policy)
    wanderer = Wanderer(number, (), config, policy)
    walk = Together(
        machine,
        (),
        wanderer.walk.alphabet,
        beside=follower(ENGINES[level](config, policy), machine),
    )
    wanderer.walk = walk
    try:
        wanderer.go(MOVES)
    except Diverged as diverged:
        report(level, machine, walk.actions)
        return diverged
    finally:
        tally.add(walk)
    return None


# --- divergences ---------------------------------------------------------------------------


def parted(level: Level, machine: Machine, actions: Sequence[Action]) -> Diverged | None:
    """Where vLLM and the specification part on a program, if they do."""
    beside = follower(ENGINES[level](machine.config, machine.policy), machine)
    state = machine.initial()
    for action in actions:
        if not allowed(beside.engine, state, action):
            return None
        moved = machine.apply(state, action)
        try:
            beside.follow(step_of(machine, state, action, moved))
        except Diverged as diverged:
            return diverged
        state = moved.state
    return None


def report(level: Level, machine: Machine, actions: Sequence[Action]) -> None:
    """Print the smallest program that is found on which they part."""

    def fails(smaller: Machine) -> StillFails:
        def still(fewer: Sequence[Action]) -> bool:
            try:
                return parted(level, smaller, fewer) is not None
            except Unsupported:
                return False

        return still

    small, fewest = shrink_world(machine, tuple(actions), fails)
    if (diverged := parted(level, small, fewest)) is not None:
        print(f"{diverged}\nconfig  {tell_config(small.config)}")
        print(f"policy  {tell_policy(small.policy)}", *tell_program(fewest), sep="\n")


# --- the whole -----------------------------------------------------------------------------


def told(tally: Tally, seed: int, divergences: int, seconds: float) -> Iterator[str]:
    """The report of a run."""
    steps, operations = tally.actions[Schedule.__name__], tally.operations
    what = "verbs of the pool" if tally.level is Level.POOL else "actions"
    orders = ", ".join(f"{n:,} {order.value}" for order, n in tally.orders.items())
    yield f"vLLM {VERSION}, level {tally.level.name.lower()}, seed {seed}"
    yield f"operations       {operations:,} ({what})"
    yield f"scheduler steps  {steps:,}"
    yield f"divergences      {divergences}"
    yield f"seconds          {seconds:.1f} ({operations / seconds:,.0f} operations a second)"
    yield f"walks            {tally.walks:,} ({orders})"
    yield "actions          " + ", ".join(f"{n:,} {k}" for k, n in tally.actions.most_common())
    yield f"fields compared  {tally.compared.total():,}"
    yield f"not seen         {', '.join(tally.unseen) or 'nothing'}"
    yield "exercised"
    for mark in Mark:
        if tally.marks[mark]:
            yield f"  {tally.marks[mark]:>9,}  {mark.meaning}"
    yield "never, though these sizes and choices allow it"
    for mark in Mark:
        if mark in tally.able and not tally.marks[mark]:
            yield f"             {mark.meaning}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m servecheck.engines.vllm",
        description="vLLM beside the specification, at random, up to the first divergence",
    )
    parser.add_argument("--level", choices=("pool", "state"), default="state")
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    try:
        load()
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    tally = Tally(Level[asked.level.upper()])
    number, divergences, begun = asked.seed * STRIDE, 0, monotonic()
    while tally.operations < asked.operations and not divergences:
        divergences += walked(tally.level, number, tally) is not None
        number += 1
    print(*told(tally, asked.seed, divergences, monotonic() - begun), sep="\n")
    return 1 if divergences else 0
