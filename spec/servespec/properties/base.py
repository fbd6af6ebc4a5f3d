"""What a property is: a named question to a state, a transition or a history.

* **S**, safety: asked of every state.
* **T**, transition: asked of every (state, action, events, state).
* **M**, monitor: carries a bounded memory from transition to transition.

The answer has three values. `VACUOUS` says that the antecedent was false: nothing was checked, so
a property that only ever answers so proves nothing. `HELD` says that it was checked. A `Fall`
says what is wrong, with the numbers in it.

A property may *fall* under sizes and choices that real engines use: that is knowledge, not noise.
Its `falls` name the condition, the reason, and a committed trace on which it falls; and they name
the *cause*, what must have happened in the run before a fall is one that is known.

A property answers whatever it is asked: of a step that is none (`servespec.properties.form`) it
falls, and says what is malformed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property
from typing import Protocol

from attrs import field, frozen

from servespec.chain import Namespace, Token, Tokens
from servespec.config import Config
from servespec.events import Event
from servespec.machine import Action, Machine, Schedule, Transition
from servespec.plan import Planned, State
from servespec.policy import Policy
from servespec.pool import Blocks
from servespec.properties.form import malformed
from servespec.rules import statement_of


class Kind(Enum):
    S = "state"
    T = "transition"
    M = "monitor"


class Answer(Enum):
    VACUOUS = "vacuous"
    HELD = "held"


VACUOUS, HELD = Answer.VACUOUS, Answer.HELD


@frozen
class Fall:
    what: str


Outcome = Answer | Fall


@frozen
class Step:
    """One transition of a machine, whole."""

    machine: Machine
    before: State
    action: Action
    after: State
    events: tuple[Event, ...]
    applied: bool = field(default=False, eq=False)
    """The machine itself has made it; any other step may be an engine's."""

    @cached_property
    def problem(self) -> str | None:
        """What makes this no step of any machine."""
        return malformed(self.machine, self.before, self.action, self.after)


def step_of(machine: Machine, before: State, action: Action, moved: Transition) -> Step:
    """The step that `apply` has just made."""
    return Step(machine, before, action, moved.state, moved.events, applied=True)


@frozen
class Renaming:
    """Other names for all that has one in a state."""

    blocks: Mapping[int, int]
    ids: Mapping[str, str]
    tokens: Mapping[Token, Token]
    """Only those that get another one."""
    namespaces: Mapping[Namespace, Namespace]
    """Only those that get another one."""

    def table(self, table: Blocks) -> Blocks:
        return tuple(self.blocks[b] for b in table)

    def text(self, text: Tokens) -> Tokens:
        return tuple(self.tokens.get(t, t) for t in text) if self.tokens else text


class Monitor(Protocol):
    """A property under way."""

    def after(self, step: Step) -> tuple[Monitor, Outcome]:
        """The monitor as it goes on, and its answer to this step."""
        ...


class Renamable(Monitor, Protocol):
    """A monitor that a search can keep: with the names of the state it belongs to."""

    def after(self, step: Step) -> tuple[Renamable, Outcome]: ...

    def renamed(self, names: Renaming) -> Renamable:
        """The monitor as it would stand, had blocks and requests these names all along: a state and
        its monitors have one set of names (EQV-1)."""
        ...


@frozen
class Falls:
    """Where a property does not hold, why, and the trace that shows it.

    The sizes and choices make a fall possible (`under`), and something that happens in a step
    brings it about (`cause`): without it a fall is one like any other. A cause that `lasts` may
    show at any later step of the run, another one in its own step only.
    """

    under: Callable[[Config, Policy], bool]
    when: str
    why: str
    trace: str
    cause: Callable[[Step], bool]
    lasts: bool = False


@frozen
class Property:
    id: str
    kind: Kind
    statement: str
    start: Callable[[Machine, State], Monitor]
    falls: tuple[Falls, ...] = ()

    def expected(self, config: Config, policy: Policy) -> Falls | None:
        """None if the property holds under these sizes and choices, else where it may fall."""
        return next(iter(self.possible(config, policy)), None)

    def possible(self, config: Config, policy: Policy) -> tuple[Falls, ...]:
        """The falls that these sizes and choices make possible."""
        return tuple(f for f in self.falls if f.under(config, policy))


REGISTRY: dict[str, Property] = {}


@frozen
class _Memoryless:
    check: Callable[[Step], Outcome]

    def after(self, step: Step) -> tuple[Monitor, Outcome]:
        problem = step.problem
        return self, self.check(step) if problem is None else Fall(problem)


@frozen
class _OfState:
    check: Callable[[Machine, State], Outcome]

    def after(self, step: Step) -> tuple[Monitor, Outcome]:
        problem = step.problem
        return self, self.check(step.machine, step.after) if problem is None else Fall(problem)


StateCheck = Callable[[Machine, State], Outcome]
StepCheck = Callable[[Step], Outcome]
Start = Callable[[Machine, State], Monitor]


def _register(name: str, kind: Kind, said: object, start: Start, falls: tuple[Falls, ...]) -> None:
    REGISTRY[name] = Property(name, kind, statement_of(said), start, falls)


def state_property(name: str, *falls: Falls) -> Callable[[StateCheck], StateCheck]:
    """Register a property of kind S."""

    def register(check: StateCheck) -> StateCheck:
        asked = _OfState(check)
        _register(name, Kind.S, check, lambda machine, state: asked, falls)
        return check

    return register


def step_property(name: str, *falls: Falls) -> Callable[[StepCheck], StepCheck]:
    """Register a property of kind T."""

    def register(check: StepCheck) -> StepCheck:
        asked = _Memoryless(check)
        _register(name, Kind.T, check, lambda machine, state: asked, falls)
        return check

    return register


def monitor_property(name: str, *falls: Falls) -> Callable[[Start], Start]:
    """Register a property of kind M by the function that starts it."""

    def register(start: Start) -> Start:
        _register(name, Kind.M, start, start, falls)
        return start

    return register


def verdict(antecedent: bool, problem: str | None) -> Outcome:
    """An answer from its two halves."""
    if problem is not None:
        return Fall(problem)
    return HELD if antecedent else VACUOUS


def planned(step: Step) -> tuple[Planned, ...] | None:
    """The plan that this step has made, if it is a Schedule."""
    return step.after.in_flight[-1].entries if isinstance(step.action, Schedule) else None


def tables(state: State) -> tuple[Blocks, ...]:
    """Every block table that holds blocks: those of live requests and of deferred releases."""
    held = tuple(r.table for r in state.live)
    return held + tuple(t for plan in state.in_flight for t in plan.deferred)


def holders(state: State) -> dict[int, int]:
    """How many tables hold each block; nothing of a block that none holds."""
    count: dict[int, int] = {}
    for table in tables(state):
        for b in table:
            count[b] = count.get(b, 0) + 1
    return count
