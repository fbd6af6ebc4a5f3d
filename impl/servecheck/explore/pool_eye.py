"""What every state of the cache machine is asked.

Theory of operation. A cache is a serving loop that holds requests and never runs: each allocated
slot is a running request whose whole text is computed. Seen so, the properties of the serving
machine that are about blocks apply to it as they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from attrs import field, frozen

from servecheck.explore.search import Seen
from servecheck.explore.system import Moved
from servespec.actions import Abort
from servespec.cache import IDLE, Allocate, Cache, CacheMachine
from servespec.config import Config
from servespec.machine import Machine
from servespec.plan import State
from servespec.properties import PROPERTIES, VACUOUS, Fall, Monitor, Property, Step
from servespec.request import Request

S = TypeVar("S")

ASKED = ("OWN-1", "OWN-2", "OWN-3", "IDX-1", "IDX-2", "IDX-3", "PUB-1")
"""Properties of states that a cache without a scheduler has."""


def pool_properties() -> tuple[Property, ...]:
    return tuple(PROPERTIES[name] for name in ASKED)


@frozen
class PoolEye(Generic[S]):
    """Asks every state of a cache."""

    cache: CacheMachine
    shown: Callable[[S], Cache]
    """The cache that a state of the search is."""
    properties: tuple[Property, ...] = field(factory=pool_properties)
    _machine: Machine = field(init=False)
    _asked: tuple[tuple[Property, Monitor], ...] = field(init=False)

    @_machine.default
    def _make(self) -> Machine:
        cache = self.cache
        most = cache.num_blocks * cache.block_size
        sizes = Config(cache.num_blocks, cache.block_size, most, most, cache.num_slots)
        return Machine(sizes, cache.policy)

    @_asked.default
    def _start(self) -> tuple[tuple[Property, Monitor], ...]:
        machine = self._machine
        return tuple((p, p.start(machine, machine.initial())) for p in self.properties)

    def state(self, state: S) -> Seen:
        here = as_state(self.cache, self.shown(state))
        step = Step(self._machine, here, Abort(""), here, ())
        falls: list[tuple[str, str]] = []
        counts: list[str] = []
        for p, monitor in self._asked:
            outcome = monitor.after(step)[1]
            if outcome is not VACUOUS:
                counts.append(p.id)
            if isinstance(outcome, Fall):
                falls.append((p.id, outcome.what))
        return Seen(tuple(falls), tuple(counts))

    def step(self, before: S, action: object, moved: Moved[object]) -> Seen:
        return Seen()


def as_state(machine: CacheMachine, cache: Cache) -> State:
    """A cache as a state of the serving machine."""
    return State(cache.pool, running=tuple(_requests(machine, cache)))


def _requests(machine: CacheMachine, cache: Cache) -> Iterator[Request]:
    for number, slot in enumerate(cache.slots):
        if slot != IDLE:
            keys = machine.keys(Allocate(slot.text, slot.namespace))
            yield Request(
                f"slot {number}",
                slot.namespace,
                slot.text,
                1,
                0,
                (),
                number,
                keys,
                computed=len(slot.text),
                table=slot.table,
                published=len(keys),
            )
