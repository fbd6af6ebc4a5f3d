"""The free queue and the index of a transition, folded from its events.

The properties of order (LRU-1 to LRU-3, CON-2, PRE-1) ask what the queue looked like at the
moment of each event inside a transition. This fold is a second reading of the rules, written
from the events alone: it keeps its own queue, counts, keys, tables and running list, and never
calls the pool's verbs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from attrs import define, frozen

from servespec import policy as choose
from servespec.chain import Chain
from servespec.events import (
    Admitted,
    BlockRemoved,
    BlockStored,
    CacheCleared,
    Event,
    Finished,
    Preempted,
    Scheduled,
)
from servespec.machine import Complete, Discard
from servespec.plan import Planned
from servespec.policy import FreeWalk, Unhashed
from servespec.pool import Blocks
from servespec.properties.base import Step, holders
from servespec.request import Request


@frozen
class Moment:
    """One event, and what stood in the queue, the index and the running list just before it."""

    event: Event
    queue: Blocks
    index: dict[Chain, Blocks]
    running: tuple[Request, ...]
    hits: int
    """Of an admission: how many blocks of its table it shares."""


@frozen
class Folded:
    """A step, folded: its moments, and what the free queue must be afterwards."""

    step: Step
    moments: tuple[Moment, ...]
    queue: Blocks


_last: list[Folded] = []


def folded(step: Step) -> Folded:
    """The fold of a step. Several properties ask for it, one after the other: the last one is
    kept."""
    if not _last or _last[0].step is not step:
        fold = Fold.of(step)
        _last[:] = [Folded(step, tuple(fold.moments()), tuple(fold.queue))]
    return _last[0]


@define
class Fold:
    """Walks the events of one step; afterwards `queue` is what the free queue must be."""

    step: Step
    queue: list[int]
    index: dict[Chain, Blocks]
    keys: dict[int, Chain]
    held: Counter[int]
    tables: dict[str, Blocks]
    running: list[Request]

    @staticmethod
    def of(step: Step) -> Fold:
        """The fold at the beginning of a step."""
        pool = step.before.pool
        return Fold(
            step,
            list(pool.free),
            {**pool.index.copies},
            {b: block.key for b, block in enumerate(pool.blocks) if block.key is not None},
            holders(step.before),
            {r.id: r.table for r in step.before.live},
            list(step.before.running),
        )

    def moments(self) -> Iterator[Moment]:
        """Every event with the moment before it; ends when all of the step is folded."""
        events = self.step.events
        for at, event in enumerate(events):
            hits = self._hits(event, events[at:])
            yield Moment(event, tuple(self.queue), self.index, tuple(self.running), hits)
            self._fold(event, hits)
        match self.step.action:
            case Complete():
                for table in self.step.before.in_flight[0].deferred:
                    self._release(table)
            case Discard():
                self._discard()

    @staticmethod
    def _hits(event: Event, rest: tuple[Event, ...]) -> int:
        if not isinstance(event, Admitted):
            return 0
        scheduled = next(e for e in rest if isinstance(e, Scheduled) and e.id == event.id)
        return len(event.blocks) - len(scheduled.new_blocks)

    def _fold(self, event: Event, hits: int) -> None:
        match event:
            case Admitted(id, _, table):
                self._hold(table[:hits])
                self.tables[id] = table[:hits]
                self.running += [r for r in self.step.before.live if r.id == id]
            case Scheduled(id, _, _, new):
                self._hold(new)
                self.tables[id] += new
            case Preempted(id) | Finished(id):
                self.running = [r for r in self.running if r.id != id]
                table = self.tables.pop(id)
                if not self.defers(id):
                    self._release(table)
            case BlockStored(block, key, _):
                self.keys[block] = key
                self.index = {**self.index, key: (*self.index.get(key, ()), block)}
            case BlockRemoved(block, key):
                self.keys.pop(block, None)
                rest = tuple(b for b in self.index.get(key, ()) if b != block)
                self.index = {**self.index, key: rest}
            case CacheCleared():
                self.keys.clear()
                self.index = {}

    def _hold(self, table: Blocks) -> None:
        self.held.update(table)
        self.queue = [b for b in self.queue if b not in table]

    def defers(self, request_id: str) -> bool:
        plans = self.step.before.in_flight
        plans = plans[1:] if isinstance(self.step.action, Complete) else plans
        in_flight = any(plan.entry(request_id) is not None for plan in plans)
        return in_flight and choose.defers_release(self.step.machine.policy)

    def _release(self, table: Blocks) -> None:
        """LRU-3: [un-hashed, by policy] + old order + [hashed, in the order of the walk]."""
        policy = self.step.machine.policy
        walk = table[::-1] if policy.free_walk is FreeWalk.TAIL_FIRST else table
        self.held.subtract(walk)
        freed = [b for b in walk if self.held[b] == 0]
        first = [b for b in freed if b not in self.keys and policy.unhashed is Unhashed.TO_HEAD]
        self.queue = first + self.queue + [b for b in freed if b not in first]

    def _discard(self) -> None:
        plan = self.step.before.in_flight[-1]
        for entry in plan.entries:
            if not entry.cancelled:
                self._release(self._returned(entry))
        for table in plan.deferred:
            self._release(table)

    def _returned(self, entry: Planned) -> Blocks:
        count = choose.returned_blocks(self.step.machine.policy, entry.new_blocks)
        return entry.table[len(entry.table) - count :]
