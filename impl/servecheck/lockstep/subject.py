"""An engine under test: how a new one is made beside a machine, and what all of them have shown.

Theory of operation. A `Subject` outlives its engines. Called with a machine it makes a new engine
and returns it as a `Beside`, a follower that counts into the subject what was compared and what
could not be seen. A divergence that the register knows (`deviations`) is counted, and the engine is
let go: the specification goes on alone. An engine that is gone in mid-run is no divergence: that is
`Lost`, and says nothing about what the engine would have done.

    subject(machine) ──▶ Beside.follow(step) ──▶ EngineFollower │ Refinement
                            └── Diverged ──▶ known? counted │ gone? Lost │ raised
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

    def allows(self, machine: Machine, state: State, action: Action) -> bool: ...


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
        except Exception as error:
            what = f"the engine cannot be made: {type(error).__name__}: {error}"
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


@define
class Beside:
    """One engine of a subject beside the specification."""

    subject: Subject
    inner: Comparing
    over: bool = False
    """It met a known deviation, and goes no further."""

    def follow(self, step: Step) -> None:
        """Go along with one step.

        Raises:
            Diverged: it cannot, and nobody knew.
            Lost: it is gone.
        """
        if self.over:
            return
        try:
            self.inner.follow(step)
        except Diverged as parted:
            if gone(parted):
                raise Lost(str(parted.__cause__)) from parted
            known = self.subject.known(parted.divergence)
            if known is None:
                raise
            self.subject.matched[known.id] += 1
            self.over = True
        else:
            self.subject.followed += 1

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


def parted(subject: Subject, machine: Machine, actions: Iterable[Action]) -> Parted | None:
    """Run a program on the specification and a new engine beside it, up to a divergence that is not
    known. None: there is none, or the program asks for what the engine cannot do.

    Raises:
        ActionDisabled: the program is not legal.
        Unsupported: the engine cannot have these sizes and choices.
        Lost: the engine is gone.
    """
    engine, state = subject.make(machine), machine.initial()
    done: list[Action] = []
    for action in actions:
        if not engine.allows(machine, state, action):
            return None
        done.append(action)
        moved = machine.apply(state, action)
        step = Step(machine, state, action, moved.state, moved.events)
        try:
            engine.follow(step)
        except Diverged as found:
            if gone(found):
                raise Lost(str(found.__cause__)) from found
            if subject.known(found.divergence) is not None:
                return None
            return Parted(machine, tuple(done), found.divergence, step)
        state = moved.state
    return None
