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

from servecheck.engines.protocol import EngineError, EngineFactory, Level, Unsupported, Verb
from servecheck.engines.vllm.adapters import VllmLoop, VllmPool
from servecheck.engines.vllm.theirs import VERSION, load
from servecheck.fuzz.draw import Chance, Seeded, draw_config, fitting, pick, varied
from servecheck.fuzz.tell import PropertyFell
from servecheck.fuzz.walk import Walk
from servecheck.fuzz.wander import Wanderer
from servecheck.lockstep.follow import Diverged, EngineFollower, follower
from servecheck.marks import Mark, possible
from servecheck.tell import tell_config, tell_policy, tell_program
from servecheck.trace.machines import shrink_world
from servecheck.trace.shrink import StillFails
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
from servespec.plan import State
from servespec.policy import VLLM_0_33, Admission, Order, Policy, Sharing, prioritised
from servespec.properties import Step, step_of

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
class Counting:
    """vLLM beside the specification, and how many verbs of a pool that took."""

    beside: EngineFollower
    verbs: int = 0

    def follow(self, step: Step) -> None:
        self.beside.follow(step)
        self.verbs += sum(map(verbs, step.events))

    def allows(self, machine: Machine, state: State, action: Action) -> bool:
        return self.beside.allows(machine, state, action)


def beside(level: Level, machine: Machine) -> EngineFollower:
    """A new vLLM beside this machine."""
    return follower(ENGINES[level](machine.config, machine.policy), machine)


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

    def add(self, walk: Walk, counting: Counting) -> None:
        seen = counting.beside.comparison
        can = counting.beside.engine.capabilities.can
        self.walks += 1
        self.verbs += counting.verbs
        self.actions.update(type(action).__name__ for action in walk.actions)
        self.compared.update(seen.compared)
        self.unseen.update(seen.unseen)
        self.marks.update(walk.marks)
        self.able |= {
            mark
            for mark in possible(walk.config, walk.policy)
            if can(Verb.DISCARD) or not mark.name.startswith("DISCARD")
        }
        self.orders[walk.policy.order] += 1

    @property
    def operations(self) -> int:
        return self.verbs if self.level is Level.POOL else self.actions.total()


def walked(level: Level, number: int, tally: Tally) -> PropertyFell | None:
    """One walk; how it ended, if not well."""
    config, policy = drawn(Seeded(number), level)
    counting = Counting(beside(level, Machine(config, policy)))
    wanderer = Wanderer(number, (), config, policy, lambda machine: counting)
    try:
        wanderer.go(MOVES)
    except PropertyFell as fall:
        return fall
    finally:
        tally.add(wanderer.walk, counting)
    return None


# --- divergences ---------------------------------------------------------------------------


def parted(level: Level, machine: Machine, actions: Sequence[Action]) -> Diverged | None:
    """Where vLLM and the specification part on a program, if they do."""
    vllm, state = beside(level, machine), machine.initial()
    for action in actions:
        if not vllm.allows(machine, state, action):
            return None
        moved = machine.apply(state, action)
        try:
            vllm.follow(step_of(machine, state, action, moved))
        except Diverged as diverged:
            return diverged
        state = moved.state
    return None


def smallest(level: Level, fall: PropertyFell) -> Iterator[str]:
    """What fell, and the smallest program that is found on which vLLM parts from the spec."""

    def fails(machine: Machine) -> StillFails:
        def still(actions: Sequence[Action]) -> bool:
            try:
                return parted(level, machine, actions) is not None
            except Unsupported:
                return False

        return still

    machine = Machine(fall.config, fall.policy)
    if not fails(machine)(fall.actions):
        yield from fall.lines
        return
    machine, actions = shrink_world(machine, fall.actions, fails)
    yield str(parted(level, machine, actions))
    yield f"config  {tell_config(machine.config)}"
    yield f"policy  {tell_policy(machine.policy)}"
    yield from tell_program(actions)


# --- the whole -----------------------------------------------------------------------------


def told(tally: Tally, seed: int, fall: PropertyFell | None, seconds: float) -> Iterator[str]:
    """The report of a run."""
    steps, operations = tally.actions[Schedule.__name__], tally.operations
    pool = tally.level is Level.POOL
    what = "verbs of the pool" if pool else "actions"
    orders = ", ".join(f"{n:,} {order.value}" for order, n in tally.orders.items())
    yield f"vLLM {VERSION}, level {tally.level.name.lower()}, seed {seed}"
    yield f"operations       {operations:,} ({what})"
    yield f"scheduler steps  {steps:,}" + (" (of the specification)" if pool else "")
    yield f"divergences      {int(fall is not None)}"
    yield f"seconds          {seconds:.1f} ({operations / seconds:,.0f} operations a second)"
    yield f"walks            {tally.walks:,} ({orders})"
    yield "actions          " + ", ".join(f"{n:,} {k}" for k, n in tally.actions.most_common())
    yield f"fields compared  {tally.compared.total():,}"
    yield f"not seen         {', '.join(tally.unseen) or 'nothing'}"
    yield "exercised"
    for mark in Mark:
        if tally.marks[mark]:
            yield f"  {tally.marks[mark]:>9,}  {mark.meaning}"
    never = [mark for mark in Mark if mark in tally.able and not tally.marks[mark]]
    yield "never, though these sizes and choices allow it" + ("" if never else ": nothing")
    for mark in never:
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
    number, fall, begun = asked.seed * STRIDE, None, monotonic()
    while fall is None and tally.operations < asked.operations:
        fall = walked(tally.level, number, tally)
        number += 1
    print(*told(tally, asked.seed, fall, monotonic() - begun), sep="\n")
    if fall is None:
        return 0
    print("", *smallest(tally.level, fall), sep="\n")
    return 1
