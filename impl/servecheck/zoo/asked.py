"""An entry alone: every property asked of the states and events that the engine goes through.

Theory of operation. The engine goes first, and the specification never says what is right: a step
is what the engine did, from its own state before to its own state after, and a walk goes on from
there. Content is a ghost that no engine has; it is painted by what each step was planned to write
(`machine.written`), and wiped where a block changes hands. GHO-1 alone is left out: it asks the
specification for a step. An engine that raises on what its own state offers falls by APPLY-1.
"""

from __future__ import annotations

from attrs import define, evolve, field, frozen

from servecheck.engines.fast.abstraction import abstraction
from servecheck.engines.fast.engine import FastEngine
from servecheck.watch import Watch
from servecheck.zoo.entry import Entry
from servespec.actions import Action, Complete, Schedule
from servespec.machine import Machine, written
from servespec.plan import State
from servespec.pool import Pool
from servespec.properties import PROPERTIES, Property, Step

CARRIED_OUT = "APPLY-1"
"""What falls where an engine raises on what its state offers."""


def asked() -> tuple[Property, ...]:
    """The properties that need no step of the specification."""
    return tuple(p for p in PROPERTIES.values() if p.id != "GHO-1")


@frozen
class Fell:
    """A property that fell on what an engine did."""

    property_id: str
    what: str


class EngineFell(Exception):
    """Ends a walk: a property fell."""

    def __init__(self, fell: Fell) -> None:
        super().__init__(f"{fell.property_id}: {fell.what}")
        self.fell = fell


@define
class Alone:
    """An engine of the zoo by itself; whoever walks goes on from its states."""

    machine: Machine
    engine: FastEngine
    properties: tuple[Property, ...] = field(factory=asked)
    """Those that are asked."""
    state: State = field(init=False)
    watch: Watch = field(init=False)
    actions: int = 0

    def __attrs_post_init__(self) -> None:
        self.state = self.machine.initial()
        self.watch = Watch(self.machine, self.state, self.properties)

    @staticmethod
    def of(entry: Entry, machine: Machine, properties: tuple[Property, ...] | None = None) -> Alone:
        """A new engine with the fault; all properties are asked, or these."""
        engine = entry.parts.build(machine.config, machine.policy)
        return Alone(machine, engine, asked() if properties is None else properties)

    def allows(self, machine: Machine, state: State, action: Action) -> bool:
        return True

    def follow(self, step: Step) -> State:
        """Do the action; the state that the engine is in.

        Raises:
            EngineFell: a property fell that is not known to fall here.
        """
        return self.do(step.action)

    def do(self, action: Action) -> State:
        """Do an action, and ask the properties.

        Raises:
            EngineFell: one fell that is not known to fall here.
        """
        self.actions += 1
        before = self.state
        try:
            events = self.engine.apply(action)
            after = painted(self.machine, before, action, abstraction(self.engine))
            step = Step(self.machine, before, action, after, events)
            fallen = self.watch.see_step(step)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise EngineFell(Fell(CARRIED_OUT, what)) from error
        for fall in fallen:
            if not fall.known:
                raise EngineFell(Fell(fall.property.id, fall.what))
        self.state = after
        return after


def painted(machine: Machine, before: State, action: Action, after: State) -> State:
    """An engine's state with content: what was there, what the step wrote, and nothing in blocks
    that were taken anew or hold nothing any more."""
    pool = before.pool
    if isinstance(action, Complete) and before.in_flight:
        pool = written(machine, pool, before.in_flight[0])
    taken: set[int] = set()
    if isinstance(action, Schedule) and after.in_flight:
        for entry in after.in_flight[-1].entries:
            taken.update(entry.table[len(entry.table) - entry.new_blocks :])
    blocks = tuple(
        evolve(
            block,
            content=()
            if at in taken or (not block.ref_count and block.key is None)
            else pool.blocks[at].content,
        )
        for at, block in enumerate(after.pool.blocks)
    )
    return evolve(after, pool=Pool(blocks, after.pool.free, after.pool.index))
