"""The Hypothesis state machine over the specification.

Theory of operation. Each run draws a world (`draw`), starts a `Walk` in it and fires moves; each
entry of `MOVES` is a rule, with its condition as precondition, so Hypothesis chooses among enabled
moves only, leaves some out of each run, and shrinks a run that fails. All draws go through one
`Chance`, whole numbers below n; there are no bundles, since payloads are relative.

    Hypothesis ──rule──▶ move(walk, Drawn(data)) ──▶ Walk.do ──▶ properties, marks
                                                        └── PropertyFell ──▶ shrunk, told

A machine class belongs to a `Tally`, which outlives its runs: it counts what all of them did, and
keeps the shortest program on which each property fell, so that a search that is cut short has
something to tell. `machine_class` makes one; its `.TestCase` is a test for pytest or unittest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import ClassVar

from attrs import define, field
from hypothesis import reject, target
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from servecheck.engines.protocol import Unsupported
from servecheck.fuzz.counted import Counted
from servecheck.fuzz.guide import Guide
from servecheck.fuzz.moves import MOVES, Move, fire
from servecheck.fuzz.tell import PropertyFell
from servecheck.fuzz.walk import Walk
from servecheck.fuzz.worlds import Draw, anywhere, begin
from servecheck.lockstep.follow import Following
from servespec.config import Config
from servespec.policy import Policy
from servespec.properties import PROPERTIES, Property


@define
class Tally(Counted):
    """What all runs of a machine class did, those of the shrinker included, and what they found."""

    falls: dict[str, PropertyFell] = field(factory=dict)
    """The shortest fall of each property, in the order in which they were found."""
    last: Walk | None = None
    """The run that ended last."""
    guide: Guide = field(factory=Guide)
    """How what is rare was reached."""

    def add(self, walk: Walk) -> None:
        """Count one run that has ended."""
        Counted.add(self, walk)
        self.last = walk
        self.guide.learn(walk)

    def keep(self, fall: PropertyFell) -> None:
        """Keep a fall, if none of its property is shorter."""
        known = self.falls.get(fall.property_id)
        if known is None or _size(fall) < _size(known):
            self.falls[fall.property_id] = fall


def _size(fall: PropertyFell) -> tuple[int, int]:
    return len(fall.actions), len(str(fall))


@cache
def _below(n: int) -> st.SearchStrategy[int]:
    return st.integers(0, n - 1)


@define
class Drawn:
    """Chance from Hypothesis."""

    data: st.DataObject

    def below(self, n: int) -> int:
        return self.data.draw(_below(n)) if n > 1 else 0


def nothing() -> None:
    """The hook of a machine that nobody waits for."""


class ServingMachine(RuleBasedStateMachine):
    """Random programs over the specification. `machine_class` makes classes to run."""

    draw: ClassVar[Draw] = staticmethod(anywhere())
    properties: ClassVar[tuple[Property, ...]] = ()
    tally: ClassVar[Tally] = Tally()
    before_run: ClassVar[Callable[[], None]] = nothing
    following: ClassVar[Following | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.walk: Walk | None = None

    @initialize(data=st.data())
    def world(self, data: st.DataObject) -> None:
        """Draw sizes and choices, as far as they are not given."""
        type(self).before_run()
        kind = type(self)
        try:
            self.walk = begin(Drawn(data), kind.draw, self.properties, kind.following)
        except Unsupported:
            # Where nothing was ever taken, that is what there is to say.
            if kind.tally.skip():
                raise
            reject()

    def teardown(self) -> None:
        """Count the run, and tell Hypothesis how far it came."""
        if self.walk is not None:
            self.tally.add(self.walk)
            target(float(len(self.walk.marks)), label="marks")


def _method(kind: Move) -> Callable[[ServingMachine, st.DataObject], None]:
    """The method that a rule calls."""

    def carry_out(self: ServingMachine, data: st.DataObject) -> None:
        assert self.walk is not None
        try:
            fire(kind, self.walk, Drawn(data))
        except PropertyFell as fall:
            self.tally.keep(fall)
            raise

    carry_out.__name__ = carry_out.__qualname__ = kind.name
    carry_out.__doc__ = kind.fire.__doc__
    return carry_out


def _enabled(kind: Move) -> Callable[[ServingMachine], bool]:
    return lambda self: self.walk is not None and kind.enabled(self.walk)


for _kind in MOVES.values():
    _rule = precondition(_enabled(_kind))(rule(data=st.data())(_method(_kind)))
    setattr(ServingMachine, _kind.name, _rule)


def machine_class(
    config: Config | None = None,
    policy: Policy | None = None,
    properties: Iterable[Property] | None = None,
    tally: Tally | None = None,
    before_run: Callable[[], None] = nothing,
    following: Following | None = None,
    draw: Draw | None = None,
) -> type[ServingMachine]:
    """A state machine class, over given sizes and choices or over all of them.

    `properties` are all unless given. `draw` gives the worlds, then what else is given does not
    count. `before_run` is called when a run begins, and may end the search by a KeyboardInterrupt:
    Hypothesis takes anything else for a fault of the run.
    """
    chosen = tuple(PROPERTIES.values() if properties is None else properties)
    body = {
        "draw": staticmethod(draw or anywhere(config, policy)),
        "properties": chosen,
        "tally": Tally() if tally is None else tally,
        "before_run": staticmethod(before_run),
        "following": None if following is None else staticmethod(following),
        "__module__": __name__,
    }
    return type("ServingMachine", (ServingMachine,), body)
