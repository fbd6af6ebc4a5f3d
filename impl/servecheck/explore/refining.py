"""An engine beside every transition of a scope: it refines the specification there, or where not.

Theory of operation. A breadth-first search without an engine finds every state that the engine's
actions can reach, and the shortest way to each. These ways are a tree; the engine goes it depth
first, in concrete states, where a name stays what it was. In every state it does every action that
is enabled, each on an engine that has come this one way, and each is compared:

    search ──tree of shortest ways──▶ depth first ──every action of every state──▶ follow

So that a way is not gone once for each branch, an engine goes on down the tree with the first one;
for the others it is *branched*: a follower that can be copied is (`Branching`), any other engine is
made anew and driven along the way again. Never more than one engine of the second kind is in use.

After a divergence only shorter programs are of interest. When all of them are done, the one that is
left is a shortest. What an engine says that it cannot do is not asked, and is undetermined.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

from attrs import define, evolve, field, frozen

from servecheck.engines.protocol import Capabilities, EngineGone, Unsupported
from servecheck.explore.search import NO_LIMITS, Ended, Found, Limits, Progress, search
from servecheck.explore.serving import Serving
from servecheck.lockstep.compare import Difference
from servecheck.lockstep.follow import ANSWER, Diverged, Divergence
from servecheck.lockstep.subject import Comparing, Parted, Subject, parted
from servespec.actions import Action, Complete, Discard, Schedule
from servespec.errors import ActionDisabled
from servespec.machine import Transition
from servespec.plan import State
from servespec.properties import Step, step_of

REPORT_EVERY = 1_000
"""Transitions from one report of the progress to the next."""


@runtime_checkable
class Branching(Protocol):
    """A follower that can be copied, and says whether its engine refuses what the machine does."""

    fresh: int
    """1: what is built anew is built in every state."""

    def branch(self) -> Comparing: ...

    def refuses(self, action: Action) -> bool: ...


@frozen
class Refined:
    """How far an engine refines the specification on a scope."""

    engine: Capabilities | None
    """None: there is none of these sizes and choices."""
    states: int
    """In which every action was done."""
    unvisited: int
    """Found without an engine, and not reached with it."""
    transitions: int
    """Compared."""
    refusals: int
    """Actions that are not enabled, and were asked of the engine all the same."""
    depth: int
    ended: Ended
    parted: Parted | None
    """A divergence: of the programs compared, a shortest."""
    nondeterministic: bool
    """It parted on a way that it had come before, or did not part again."""
    unable: Counter[str]
    """Actions that the engine says it cannot do, by kind."""
    known: Counter[str]
    """Known deviations met, by id; nothing beyond them was compared."""
    unseen: Counter[str]
    """Parts that the engine does not show."""
    why: str | None
    """Why there is no engine, or no longer."""
    seconds: float

    @property
    def holds(self) -> bool | None:
        """Whether the engine refines the specification on this scope; None: that is not known."""
        if self.parted is not None:
            return False
        open_ = self.why is not None or self.unvisited > 0 or self.unable or self.known
        return None if open_ or self.ended is not Ended.EXHAUSTED else True


def refined(
    system: Serving,
    subject: Subject,
    *,
    limits: Limits = NO_LIMITS,
    report: Callable[[Progress], None] | None = None,
) -> Refined:
    """Do every transition of a scope with an engine beside it, or as many as the limits allow.

    Raises:
        EngineError: the engine is not what it says it is, or cannot be made.
    """
    began = time.monotonic()
    try:
        engine = subject.make(system.machine)
    except Unsupported as why:
        subject.refused += 1
        return _nothing(str(why), time.monotonic() - began)
    found = search(_Able(system, engine), limits=limits, report=report)
    if found.ended is Ended.INTERRUPTED:
        nothing = _nothing("interrupted before anything was compared", found.seconds)
        return evolve(nothing, engine=subject.capabilities, ended=found.ended)
    run = _Run(system, subject, found, limits, report, began)
    return run.whole(engine)


def _nothing(why: str, seconds: float) -> Refined:
    none = Counter[str]()
    ended = Ended.EXHAUSTED
    return Refined(None, 0, 0, 0, 0, 0, ended, None, False, none, none, none, why, seconds)


@frozen
class _Able:
    """A serving system without the actions that an engine cannot do."""

    system: Serving
    engine: Comparing

    def initial(self) -> State:
        return self.system.initial()

    def enabled(self, state: State) -> Iterator[Action]:
        machine = self.system.machine
        return (a for a in self.system.enabled(state) if self.engine.allows(machine, state, a))

    def apply(self, state: State, action: Action) -> Transition:
        return self.system.apply(state, action)

    def canonical(self, state: State) -> bytes:
        return self.system.canonical(state)

    def restore(self, key: bytes) -> State:
        return self.system.restore(key)


@define
class _Here:
    """A state on the way, and what is still to be done in it."""

    number: int
    state: State
    actions: Iterator[Action]
    came: Step | None
    """The step that led here; None: it is the initial state."""
    engine: Comparing | None = None
    """What is copied to go on from here, if it can be."""


@define
class _Run:
    """An engine on its way through the tree."""

    system: Serving
    subject: Subject
    found: Found[bytes]
    limits: Limits
    report: Callable[[Progress], None] | None
    began: float
    numbers: dict[bytes, int] = field(factory=dict)
    visited: set[int] = field(factory=set)
    way: list[_Here] = field(factory=list)
    transitions: int = 0
    refusals: int = 0
    depth: int = 0
    parted: Parted | None = None
    nondeterministic: bool = False
    unable: Counter[str] = field(factory=Counter)
    known: Counter[str] = field(factory=Counter)
    unseen: Counter[str] = field(factory=Counter)

    def whole(self, engine: Comparing) -> Refined:
        self.numbers = {key: i for i, key in enumerate(self.found.graph.keys)}
        ended, why = self.found.ended, None
        said = engine.capabilities
        try:
            over = self._go(self._counted(engine))
            ended = over or ended
            if self.parted is not None and not isinstance(engine, Branching):
                self.nondeterministic |= not self._again(self.parted)
        except KeyboardInterrupt:
            ended = Ended.INTERRUPTED
        except EngineGone as gone:  # what it would have done is not known
            why = str(gone)
        return Refined(
            said,
            len(self.visited),
            len(self.found.graph.keys) - len(self.visited),
            self.transitions,
            self.refusals,
            self.depth,
            ended,
            self.parted,
            self.nondeterministic,
            self.unable,
            self.known,
            self.unseen,
            why,
            time.monotonic() - self.began,
        )

    def _go(self, engine: Comparing | None) -> Ended | None:
        """Through the whole tree; the limit that is reached, if one is."""
        self._enter(0, self.system.initial(), None, engine)
        while self.way:
            here = self.way[-1]
            action = next(here.actions, None) if self._worthwhile() else None
            if action is None:
                self.way.pop()
                engine = None
                continue
            engine = self._branched(here, engine)
            if engine is None or not self._allowed(engine, here, action):
                continue
            step = self._followed(engine, action)
            number = None if step is None else self._child(here, step.after)
            if step is None or number is None:
                engine = None
            else:
                self._enter(number, step.after, step, engine)
            if self.transitions % REPORT_EVERY == 0 and self._reported():
                return Ended.SECONDS
        return None

    def _worthwhile(self) -> bool:
        """A program that goes on from here is shorter than the one that is known to part."""
        return self.parted is None or len(self.way) < len(self.parted.actions)

    def _enter(
        self, number: int, state: State, came: Step | None, engine: Comparing | None
    ) -> None:
        self.visited.add(number)
        here = _Here(number, state, iter(self.system.enabled(state)), came)
        self.way.append(here)
        self.depth = max(self.depth, len(self.way) - 1)
        if isinstance(engine, Branching):
            here.engine = engine
            for action in misused(self.system, state):
                self.refusals += 1
                if not engine.refuses(action):
                    self._part(
                        _not_refused(engine, action),
                        Step(self.system.machine, state, action, state, ()),
                    )

    def _child(self, here: _Here, after: State) -> int | None:
        """The number of a state that is reached by this way first."""
        number = self.numbers.get(self.system.canonical(after))
        mine = number and number not in self.visited
        return number if mine and self.found.graph.parents[number or 0] == here.number else None

    def _allowed(self, engine: Comparing, here: _Here, action: Action) -> bool:
        if engine.allows(self.system.machine, here.state, action):
            return True
        self.unable[type(action).__name__] += 1
        return False

    # --- engines ---

    def _counted(self, engine: Comparing) -> Comparing:
        engine.comparison.compared = self.subject.compared
        engine.comparison.unseen = self.unseen
        if isinstance(engine, Branching):
            engine.fresh = 1
        return engine

    def _branched(self, here: _Here, engine: Comparing | None) -> Comparing | None:
        """An engine that has come this way; None if it parts on it now."""
        if isinstance(here.engine, Branching):
            return here.engine.branch()
        if engine is not None:
            return engine
        made = self._counted(self.subject.make(self.system.machine))
        for there in self.way:
            if there.came is not None and not self._follows(made, there.came):
                self.nondeterministic = True
                return None
        return made

    def _followed(self, engine: Comparing, action: Action) -> Step | None:
        """The next step, if the engine goes along."""
        here, machine = self.way[-1], self.system.machine
        step = step_of(machine, here.state, action, self.system.apply(here.state, action))
        self.transitions += 1
        self.subject.followed += 1
        return step if self._follows(engine, step) else None

    def _follows(self, engine: Comparing, step: Step) -> bool:
        try:
            engine.follow(step)
        except Diverged as diverged:
            try:
                known = self.subject.pardons(diverged)
            except Diverged:
                self._part(diverged.divergence, step)
            else:
                self.known[known.id] += 1
                self.subject.matched[known.id] += 1
            return False
        return True

    def _part(self, divergence: Divergence, step: Step) -> None:
        came = [here.came for here in self.way if here.came is not None]
        actions = (*(s.action for s in came[: divergence.number]), step.action)
        if self.parted is None or len(actions) < len(self.parted.actions):
            self.parted = Parted(self.system.machine, actions, divergence, step)

    def _again(self, first: Parted) -> bool:
        """New engines part on the same program in the same way, twice: every other one may not."""
        runs = (parted(self.subject, first.machine, first.actions) for _ in range(2))
        return all(run is not None and run.divergence == first.divergence for run in runs)

    def _reported(self) -> bool:
        """Tell how far it is; whether the time is over."""
        seconds = time.monotonic() - self.began
        if self.report is not None:
            visited, left = len(self.visited), len(self.numbers) - len(self.visited)
            self.report(Progress(visited, self.transitions, self.depth, left, seconds))
        return self.limits.seconds is not None and seconds >= self.limits.seconds


def misused(system: Serving, state: State) -> Iterator[Action]:
    """Actions that a state does not offer, one of each kind."""
    tried: list[Action] = [Schedule(), Complete(), Discard()]
    tried += [evolve(system.kinds[0], id=r.id) for r in state.live[:1]]
    for action in tried:
        try:
            system.machine.apply(state, action)
        except ActionDisabled:
            yield action


def _not_refused(engine: Comparing, action: Action) -> Divergence:
    said = engine.capabilities
    found = Difference(ANSWER, "the action is refused, and nothing happens", "something else")
    return Divergence(said.name, said.version, said.level, engine.done, action, (found,))
