"""The open machine as a system that can be searched, and exact policies inside it.

Theory of operation. A `Schedule` of the exact machine makes one plan; of the open one, every plan
that a way through the permitted moves makes (`servespec.open`). Such a pass is an action of its
own, `Chosen`, which names its moves. Two ways that differ only in the reasons that are told, or in
what nobody looks at any more, are the same.

*exact ⊆ open* is asked of a pass: at each point of it the exact move is permitted there.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve, frozen

from servecheck.explore.asking import NOTHING
from servecheck.explore.search import NO_LIMITS, Ended, Limits, Seen, search
from servecheck.explore.serving import Serving
from servecheck.explore.system import Moved
from servespec import open as any_engine
from servespec import scheduler
from servespec.actions import Action, Schedule
from servespec.events import Skipped
from servespec.machine import Transition
from servespec.moves import Close, Move, Pass, Preempt, Skip, step
from servespec.plan import Plan, State
from servespec.properties import VACUOUS, Fall, Kind, Property, Step


@frozen
class Chosen:
    """A `Schedule`, with the moves that an engine chose."""

    first: int = 0
    """Which list it begins with."""
    moves: tuple[Move, ...] = ()


OpenAction = Action | Chosen


@frozen
class Opened:
    """A serving system in which a pass may go any way that every engine's may."""

    base: Serving

    def initial(self) -> State:
        return self.base.initial()

    def enabled(self, state: State) -> Iterator[OpenAction]:
        for action in self.base.enabled(state):
            if isinstance(action, Schedule):
                yield from self.passes(state)
            else:
                yield action

    def apply(self, state: State, action: OpenAction) -> Transition:
        if not isinstance(action, Chosen):
            return self.base.apply(state, action)
        machine = self.base.machine
        p = any_engine.starts(machine.config, machine.policy, state)[action.first]
        for move in action.moves:
            p = step(p, move)
        return Transition(
            evolve(p.state, in_flight=(*p.state.in_flight, Plan(p.entries))), p.events
        )

    def canonical(self, state: State) -> bytes:
        return self.base.canonical(state)

    def restore(self, key: bytes) -> State:
        return self.base.restore(key)

    def passes(self, state: State) -> Iterator[Chosen]:
        """Every open pass over a state, one of those that come to the same."""
        machine, seen = self.base.machine, set[Pass]()
        for first, p in enumerate(any_engine.starts(machine.config, machine.policy, state)):
            under_way: list[tuple[Pass, tuple[Move, ...]]] = [(p, ())]
            while under_way:
                p, moves = under_way.pop()
                if p.phases == ():
                    yield Chosen(first, moves)
                for move in one_reason(any_engine.permitted(p)):
                    after = step(p, move)
                    what = _alike(after)
                    if what not in seen:
                        seen.add(what)
                        under_way.append((after, (*moves, move)))


def one_reason(moves: tuple[Move, ...]) -> Iterator[Move]:
    """Of moves that differ by what they say, the first."""
    said: set[object] = set()
    for move in moves:
        match move:
            case Skip() | Close():
                what: object = type(move)
            case Preempt(victim):  # how many tokens room is made for, no open move looks at
                what = Preempt, victim
            case _:
                what = move
        if what not in said:
            said.add(what)
            yield move


def _alike(p: Pass) -> Pass:
    """A pass without what no open move looks at."""
    told = tuple(e for e in p.events if not isinstance(e, Skipped))
    return Pass(
        p.config,
        p.policy,
        p.state,
        p.phases,
        p.tokens_left,
        0,
        0,
        p.cursor,
        None,
        0,
        p.entries,
        told,
    )


@frozen
class Watching:
    """The eye of a search of the open machine: what every engine promises."""

    system: Opened
    properties: tuple[Property, ...]

    def state(self, state: State) -> Seen:
        return self._asked(Kind.S, Step(self.system.base.machine, state, NOTHING, state, ()))

    def step(self, before: State, action: OpenAction, moved: Moved[object]) -> Seen:
        if not isinstance(moved, Transition):
            return Seen()
        machine, done = (
            self.system.base.machine,
            Schedule() if isinstance(action, Chosen) else action,
        )
        return self._asked(Kind.T, Step(machine, before, done, moved.state, moved.events))

    def _asked(self, kind: Kind, step: Step) -> Seen:
        falls: list[tuple[str, str]] = []
        counts: list[str] = []
        for p in self.properties:
            if p.kind is not kind:
                continue
            _, outcome = p.start(step.machine, step.before).after(step)
            if outcome is not VACUOUS:
                counts.append(p.id)
            if isinstance(outcome, Fall):
                falls.append((p.id, outcome.what))
        return Seen(tuple(falls), tuple(counts))


@frozen
class NotOpen:
    """A move of an exact policy that the open machine does not permit."""

    state: State
    at: int
    """Moves of the pass before."""
    move: Move


@frozen
class Contained:
    """Whether the passes of an exact policy are passes of the open machine, on a scope."""

    states: int
    passes: int
    moves: int
    ended: Ended
    outside: tuple[NotOpen, ...]

    @property
    def holds(self) -> bool | None:
        if self.outside:
            return False
        return True if self.ended is Ended.EXHAUSTED else None


def contained(system: Serving, *, limits: Limits = NO_LIMITS) -> Contained:
    """*exact ⊆ open*: at each point of each pass over each state of a scope."""
    found = search(system, limits=limits)
    machine, outside = system.machine, list[NotOpen]()
    passes = moves = 0
    for key in found.graph.keys:
        state = system.restore(key)
        if len(state.in_flight) >= machine.config.max_steps_in_flight:
            continue
        passes += 1
        p = scheduler.start(machine.config, machine.policy, state)
        begins = any_engine.starts(machine.config, machine.policy, state)
        if p.phases not in {begun.phases for begun in begins}:
            outside.append(NotOpen(state, 0, Close()))
        at = 0
        while exact := scheduler.permitted(p):
            if exact[0] not in any_engine.permitted(p):
                outside.append(NotOpen(state, at, exact[0]))
                break
            p = step(p, exact[0])
            at, moves = at + 1, moves + 1
    return Contained(found.states, passes, moves, found.ended, tuple(outside))
