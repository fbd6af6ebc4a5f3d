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
from servecheck.lockstep.compare import Names
from servecheck.lockstep.follow import Diverged
from servecheck.zoo.entry import Entry, Planted
from servecheck.zoo.told import Listening, subject_of
from servespec.actions import Abort, Action, Complete, Discard, ResetCache, Submit
from servespec.errors import SpecError
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
    level: list[_Reached] = [_Reached(system.initial(), start, (), Names.none())]
    tried = 0
    for _ in range(depth):
        behind: list[_Reached] = []
        for here in level:
            for action in system.enabled(here.state):
                if tried == edges:
                    return Nearest(None, len(states), tried, False)
                tried += 1
                moved = system.apply(here.state, action)
                way = (*here.way, action)
                step = Step(system.machine, here.state, action, moved.state, moved.events)
                known = agreed(entry, here.way, step, here.known, names)
                if known is None:
                    program = tuple(renamed(a, names) for a in way)
                    return Nearest(program, len(states), tried, True)
                key = (*here.before, system.canonical(moved.state))[-memory - 1 :]
                if key not in seen:
                    seen.add(key)
                    states.add(key[-1])
                    behind.append(_Reached(moved.state, key, way, known))
        level = behind
        if not level:
            break
    return Nearest(None, len(states), tried, True)


@frozen
class _Reached:
    """A state, and how it was come to."""

    state: State
    before: Before
    way: tuple[Action, ...]
    known: Names
    """What the engine has called keys on the way."""


def renamed(action: Action, names: Mapping[str, str]) -> Action:
    """An action with other ids."""
    match action:
        case Submit(id=id) | Abort(id=id):
            return evolve(action, id=names.get(id, id))
        case Complete(outputs):
            return Complete(tuple(evolve(o, id=names.get(o.id, o.id)) for o in outputs))
    return action


def agreed(
    entry: Entry,
    way: Sequence[Action],
    step: Step,
    known: Names,
    names: Mapping[str, str] = NO_NAMES,
) -> Names | None:
    """What an engine that has come this way, where it agreed, calls keys once it has done this step
    as it should; None: it parts from the specification.

    Args:
        known: what it has called keys on the way.
        names: ids to be used for slots.
    """
    if names:
        way, step = _step_named(way, step, names)
    try:
        beside = subject_of(entry).make(step.machine)
    except EngineError:
        return None
    if not isinstance(beside, Listening) or not isinstance(beside.engine, Planted):
        raise TypeError("an entry is followed by what listens to it")
    beside.comparison.names = Names(dict(known.keys), dict(known.names), [])
    try:
        for action in way:
            beside.engine.engine.apply(action)
        beside.follow(step)
    except (SpecError, Diverged):
        return None
    return beside.comparison.names


def _step_named(
    way: Sequence[Action], step: Step, names: Mapping[str, str]
) -> tuple[Sequence[Action], Step]:
    """The same way and step with other ids."""
    way, action = [renamed(a, names) for a in way], renamed(step.action, names)
    state = step.machine.initial()
    for done in way:
        state = step.machine.apply(state, done).state
    moved = step.machine.apply(state, action)
    return way, Step(step.machine, state, action, moved.state, moved.events)
