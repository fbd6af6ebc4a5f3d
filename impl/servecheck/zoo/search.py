"""Exhaustive search for the shortest program on which an entry differs.

Theory of operation. Breadth first over the states of the specification: each action of each state
is done by a new engine with the fault that has come the way to that state, and compared. States are
told apart up to renaming, and of several ways to one the first is taken. An engine with a fault can
remember more than its state, and differ on another way only; so states can be told apart by those
before them as well, as many as `memory` says. Along a known program the memory grows until the
search has come to a difference; with all that was before, every program of the world is tried.

    nearest_along(program) ──▶ around: these sizes, these requests ──▶ nearest ──▶ depth, whole?

The world is that of a known counterexample, for its depth; or a scope of `servecheck.explore`, to
say that an entry cannot be told apart there. There ids are mere slots; where those of a program
begin one with the other, which some faults need, they are the program's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from attrs import evolve, frozen

from servecheck.engines.protocol import EngineError
from servecheck.explore.serving import IDS, Serving
from servecheck.lockstep.follow import Diverged
from servecheck.zoo.entry import Entry
from servecheck.zoo.told import subject_of
from servespec.actions import Abort, Action, Complete, Discard, ResetCache, Submit
from servespec.machine import Machine
from servespec.plan import State
from servespec.properties import Step

EDGES = 20_000
"""Actions that a search along a program tries with each memory."""
NOBODY = "nobody"
"""An id that no slot has."""
NO_NAMES: Mapping[str, str] = MappingProxyType({})
"""Slots are ids."""


@frozen
class Nearest:
    """What a search has found."""

    program: tuple[Action, ...] | None
    """The shortest one that differs; None: there is none, as far as was looked."""
    states: int
    edges: int
    whole: bool
    """All states were looked at that are no deeper than that, or than was asked for."""

    @property
    def depth(self) -> int | None:
        """Actions of the shortest program."""
        return None if self.program is None else len(self.program)


def around(machine: Machine, actions: Sequence[Action]) -> Serving:
    """The world of a program: its requests, its tokens, its kinds of actions, and no others."""
    submits = [action for action in actions if isinstance(action, Submit)]
    outputs = [o for action in actions if isinstance(action, Complete) for o in action.outputs]
    tokens = {t for output in outputs for t in (*output.tokens, *output.drafts)}
    kinds = dict.fromkeys(
        Submit("", s.prompt, s.max_tokens, s.namespace, s.priority, s.stop, s.with_last)
        for s in submits
    )
    state, most, nobody = machine.initial(), 1, False
    for action in actions:
        if isinstance(action, Abort) and all(r.id != action.id for r in state.live):
            nobody = True
        state = machine.apply(state, action).state
        most = max(most, len(state.live))
    resets = dict.fromkeys(a.preempt_running for a in actions if isinstance(a, ResetCache))
    return Serving(
        machine,
        tuple(kinds),
        most,
        tokens=tuple(sorted(tokens)) or (0,),
        aborts=any(isinstance(action, Abort) for action in actions),
        nobody=nobody,
        resets=tuple(resets),
        discards=any(isinstance(action, Discard) for action in actions),
    )


def nearest_along(entry: Entry, machine: Machine, actions: Sequence[Action]) -> Nearest:
    """The shortest program in the world of one on which the entry differs, no longer than it."""
    system, names = around(machine, actions), names_in(actions)
    for memory in range(len(actions)):
        found = nearest(entry, system, EDGES, len(actions), memory, names)
        if found.program is not None or not found.whole:
            break
    return found


def names_in(actions: Sequence[Action]) -> Mapping[str, str]:
    """Ids of a program by the slots that they take, if one of them begins with another."""
    there = sorted({action.id for action in actions if isinstance(action, Submit)})
    absent = sorted({action.id for action in actions if isinstance(action, Abort)} - {*there})
    ids = (*there, *absent)
    if not any(i != other and other.startswith(i) for i in ids for other in ids):
        return NO_NAMES
    return dict([*zip(IDS, there, strict=False), *zip((NOBODY,), absent, strict=False)])


Before = tuple[bytes, ...]
"""Keys of the last states, the youngest last."""


def nearest(
    entry: Entry,
    system: Serving,
    edges: int = EDGES,
    depth: int = 1_000,
    memory: int = 0,
    names: Mapping[str, str] = NO_NAMES,
) -> Nearest:
    """The shortest program of a world on which the entry differs, of at most so many actions.

    Args:
        memory: states before one by which it is told apart.
        names: ids to be used for slots.
    """
    start: Before = (system.canonical(system.initial()),)
    seen, states = {start}, {start[-1]}
    level: list[tuple[State, Before, tuple[Step, ...]]] = [(system.initial(), start, ())]
    tried = 0
    for _ in range(depth):
        behind: list[tuple[State, Before, tuple[Step, ...]]] = []
        for state, before, way in level:
            for action in system.enabled(state):
                if tried == edges:
                    return Nearest(None, len(states), tried, False)
                tried += 1
                moved = system.apply(state, action)
                step = Step(system.machine, state, action, moved.state, moved.events)
                steps = (*way, step)
                if differs(entry, steps, names):
                    program = tuple(renamed(s.action, names) for s in steps)
                    return Nearest(program, len(states), tried, True)
                key = (*before, system.canonical(moved.state))[-memory - 1 :]
                if key not in seen:
                    seen.add(key)
                    states.add(key[-1])
                    behind.append((moved.state, key, steps))
        level = behind
        if not level:
            break
    return Nearest(None, len(states), tried, True)


def renamed(action: Action, names: Mapping[str, str]) -> Action:
    """An action with other ids."""
    match action:
        case Submit(id=id) | Abort(id=id):
            return evolve(action, id=names.get(id, id))
        case Complete(outputs):
            return Complete(tuple(evolve(o, id=names.get(o.id, o.id)) for o in outputs))
    return action


def differs(entry: Entry, steps: Sequence[Step], names: Mapping[str, str] = NO_NAMES) -> bool:
    """An engine parts from the specification on these steps. All of them are compared: what an
    engine calls a key is learned where it first shows it."""
    told = _named(steps, names) if names else steps
    try:
        beside = subject_of(entry).make(told[0].machine)
        for step in told:
            beside.follow(step)
    except (Diverged, EngineError):
        return True
    return False


def _named(steps: Sequence[Step], names: Mapping[str, str]) -> list[Step]:
    """The same steps with other ids."""
    machine, told = steps[0].machine, list[Step]()
    state = machine.initial()
    for step in steps:
        action = renamed(step.action, names)
        moved = machine.apply(state, action)
        told.append(Step(machine, state, action, moved.state, moved.events))
        state = moved.state
    return told
