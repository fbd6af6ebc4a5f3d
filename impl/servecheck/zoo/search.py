"""Exhaustive search for the shortest program on which an entry differs.

Theory of operation. Breadth first over the states of the specification: each action of each state
is done by a new engine with the fault that has come the way to that state, and compared. States are
told apart up to renaming, so of several ways to a state the first one is taken; a fault that
remembers more than its state can therefore be found deeper than need be, never where it is not.

    around(trace) ──▶ Serving: these sizes, these requests ──▶ nearest ──▶ depth, states, whole?

The world is that of a known counterexample, for its depth; or a scope of `servecheck.explore`, to
say that an entry cannot be told apart there.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from servecheck.engines.protocol import EngineError
from servecheck.explore.serving import Serving
from servecheck.lockstep.follow import Diverged
from servecheck.zoo.entry import Entry, Planted
from servecheck.zoo.told import Listening, subject_of
from servespec.actions import Abort, Action, Complete, Discard, ResetCache, Submit
from servespec.errors import SpecError
from servespec.machine import Machine
from servespec.plan import State
from servespec.properties import Step

EDGES = 4_000
"""Actions that a search tries."""


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
    state, most = machine.initial(), 1
    for action in actions:
        state = machine.apply(state, action).state
        most = max(most, len(state.live))
    resets = dict.fromkeys(a.preempt_running for a in actions if isinstance(a, ResetCache))
    return Serving(
        machine,
        tuple(kinds),
        most,
        tokens=tuple(sorted(tokens)) or (0,),
        aborts=any(isinstance(action, Abort) for action in actions),
        resets=tuple(resets),
        discards=any(isinstance(action, Discard) for action in actions),
    )


def nearest(entry: Entry, system: Serving, edges: int = EDGES, depth: int = 1_000) -> Nearest:
    """The shortest program of a world on which the entry differs, of at most so many actions."""
    seen = {system.canonical(system.initial())}
    level: list[tuple[State, tuple[Action, ...]]] = [(system.initial(), ())]
    tried = 0
    for _ in range(depth):
        behind: list[tuple[State, tuple[Action, ...]]] = []
        for state, way in level:
            for action in system.enabled(state):
                if tried == edges:
                    return Nearest(None, len(seen), tried, False)
                tried += 1
                moved = system.apply(state, action)
                step = Step(system.machine, state, action, moved.state, moved.events)
                if differs(entry, way, step):
                    return Nearest((*way, action), len(seen), tried, True)
                key = system.canonical(moved.state)
                if key not in seen:
                    seen.add(key)
                    behind.append((moved.state, (*way, action)))
        level = behind
        if not level:
            return Nearest(None, len(seen), tried, True)
    return Nearest(None, len(seen), tried, True)


def differs(entry: Entry, way: Sequence[Action], step: Step) -> bool:
    """An engine that has come this way, where it agreed, does this step otherwise."""
    try:
        beside = subject_of(entry).make(step.machine)
    except EngineError:
        return True
    if not isinstance(beside, Listening) or not isinstance(beside.engine, Planted):
        raise TypeError("an entry is followed by what listens to it")
    try:
        for action in way:
            beside.engine.engine.apply(action)
    except SpecError:
        return True
    try:
        beside.follow(step)
    except Diverged:
        return True
    return False
