"""An engine under test: how a new one is made beside a machine, and what all of them have shown.

Theory of operation. A `Subject` outlives its engines. Called with a machine it makes a new engine
and returns it as a `Beside`, a follower that counts into the subject what was compared and what
could not be seen. At a divergence that the register knows (`deviations`) the engine's state is
adopted, and the specification goes on from it, so that later divergences still show. An engine that
does not show its state, or none that is legal, is let go there: what it would have done from then
on is undetermined, and the specification goes on alone. An engine that is gone in mid-run is no
divergence: that is `Lost`, and says nothing about what the engine would have done.

    subject(machine) ──▶ Beside.follow(step) ──▶ EngineFollower │ Refinement
                            └── Diverged ──▶ gone? Lost │ known? adopted or let go │ raised
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from attrs import define, field, frozen

from servecheck.engines.protocol import (
    Capabilities,
    Engine,
    EngineError,
    EngineFactory,
    EngineGone,
    Level,
    Unsupported,
)
from servecheck.lockstep.adopt import NotAdoptable
from servecheck.lockstep.compare import Comparison
from servecheck.lockstep.deviations import Deviation
from servecheck.lockstep.follow import ANSWER, Diverged, Divergence, follower
from servespec.actions import Action
from servespec.machine import Machine
from servespec.plan import State
from servespec.properties import Step


class Comparing(Protocol):
    """A follower that tells what it compares."""

    done: int
    comparison: Comparison

    @property
    def capabilities(self) -> Capabilities: ...

    def follow(self, step: Step) -> None: ...

    def adopt(self, step: Step) -> State: ...

    def allows(self, machine: Machine, state: State, action: Action) -> bool: ...


@frozen
class Adoption:
    """A known deviation after which the specification went on from the engine's state."""

    number: int
    """Of the action, from 0."""
    id: str
    """Of the entry in the register."""


class Lost(EngineGone):
    """An engine that was gone in mid-run, without having diverged."""


@define
class Subject:
    """Engines of one kind under test."""

    start: Callable[[Machine], Comparing]
    deviations: tuple[Deviation, ...] = ()
    capabilities: Capabilities | None = None
    """Of the engine made last."""
    followed: int = 0
    """Actions in lockstep."""
    compared: Counter[str] = field(factory=Counter)
    unseen: Counter[str] = field(factory=Counter)
    matched: Counter[str] = field(factory=Counter)
    """Known deviations met, by id."""
    adopted: Counter[str] = field(factory=Counter)
    """Those after which the specification went on from the engine's state."""
    let_go: Counter[str] = field(factory=Counter)
    """Those after which the engine was let go: undetermined from there."""
    why_let_go: dict[str, str] = field(factory=dict)
    """Why it was, the first time."""
    refused: int = 0
    """Worlds that the engine could not have."""

    @staticmethod
    def of(
        factory: EngineFactory,
        deviations: tuple[Deviation, ...] = (),
        level: Level | None = None,
    ) -> Subject:
        """The engines of a factory, compared at this level or at their own."""

        def start(machine: Machine) -> Comparing:
            made = factory(machine.config, machine.policy)
            if not isinstance(made, Engine) or not isinstance(made.capabilities, Capabilities):
                raise EngineError(
                    f"what the factory makes, a {type(made).__name__}, is no engine: it has no "
                    "capabilities; see servecheck.engines.protocol"
                )
            return follower(made, machine, level)

        return Subject(start, deviations)

    def make(self, machine: Machine) -> Comparing:
        """A new engine beside this machine, of which nothing is counted.

        Raises:
            Unsupported: there is none of these sizes and choices.
            EngineError: it is not what it says it is, or cannot be made.
        """
        try:
            made = self.start(machine)
        except EngineError:
            raise
        except (Exception, SystemExit) as error:
            what = f"the engine cannot be made: {type(error).__name__}: {error}".removesuffix(": ")
            raise EngineGone(what) from error
        self.capabilities = made.capabilities
        return made

    def __call__(self, machine: Machine) -> Beside:
        try:
            made = self.make(machine)
        except Unsupported:
            self.refused += 1
            raise
        made.comparison.compared = self.compared
        made.comparison.unseen = self.unseen
        return Beside(self, made)

    def known(self, divergence: Divergence) -> Deviation | None:
        """The entry of the register that this divergence is, if it is one."""
        return next((d for d in self.deviations if d.matches(divergence)), None)

    def pardons(self, parted: Diverged) -> Deviation:
        """The entry of the register that knows what the engine did.

        Raises:
            Diverged: there is none.
            Lost: the engine is gone, and that is all.
        """
        if gone(parted):
            raise Lost(str(parted.__cause__)) from parted
        known = self.known(parted.divergence)
        if known is None:
            raise parted
        return known


@define
class Beside:
    """One engine of a subject beside the specification."""

    subject: Subject
    inner: Comparing
    over: bool = False
    """It met a known deviation, and goes no further."""
    adoptions: list[Adoption] = field(factory=list)

    def follow(self, step: Step) -> State | None:
        """Go along with one step. The state to go on from, where it is the engine's own.

        Raises:
            Diverged: it cannot, and nobody knew.
            Lost: it is gone.
        """
        if self.over:
            return None
        number, subject = self.inner.done, self.subject
        try:
            self.inner.follow(step)
        except Diverged as parted:
            known = subject.pardons(parted)
        else:
            subject.followed += 1
            return None
        subject.matched[known.id] += 1
        try:
            state = self.inner.adopt(step)
        except NotAdoptable as why:
            subject.let_go[known.id] += 1
            subject.why_let_go.setdefault(known.id, str(why))
            self.over = True
            return None
        subject.adopted[known.id] += 1
        self.adoptions.append(Adoption(number, known.id))
        return state

    def allows(self, machine: Machine, state: State, action: Action) -> bool:
        return self.over or self.inner.allows(machine, state, action)


def gone(parted: Diverged) -> bool:
    """All that this says is that the engine is gone."""
    first = parted.divergence.differences[0]
    return first.field == ANSWER and isinstance(parted.__cause__, EngineGone)


@frozen
class Parted:
    """Where an engine parts from the specification on a program, and up to where it is legal."""

    machine: Machine
    actions: tuple[Action, ...]
    """Up to the divergence."""
    divergence: Divergence
    step: Step
    """The one after which they differ."""
    adoptions: tuple[Adoption, ...] = ()
    """Known deviations before, after which the specification went on from the engine's state."""


def parted(subject: Subject, machine: Machine, actions: Iterable[Action]) -> Parted | None:
    """Run a program on the specification and a new engine beside it, up to a divergence that is not
    known; the state of one that is known is adopted. None: there is none, or the program asks for
    what the engine cannot do, or the engine had to be let go.

    Raises:
        ActionDisabled: the program is not legal.
        Unsupported: the engine cannot have these sizes and choices.
        Lost: the engine is gone.
    """
    engine, state = subject.make(machine), machine.initial()
    done: list[Action] = []
    adoptions: list[Adoption] = []
    for action in actions:
        if not engine.allows(machine, state, action):
            return None
        done.append(action)
        moved, number = machine.apply(state, action), engine.done
        step = Step(machine, state, action, moved.state, moved.events)
        state = moved.state
        try:
            engine.follow(step)
        except Diverged as found:
            try:
                known = subject.pardons(found)
            except Diverged:
                return Parted(machine, tuple(done), found.divergence, step, tuple(adoptions))
            try:
                state = engine.adopt(step)
            except NotAdoptable:
                return None
            adoptions.append(Adoption(number, known.id))
    return None
