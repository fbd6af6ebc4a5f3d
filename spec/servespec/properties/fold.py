"""A transition, folded from its events: what they say must have become of the state.

Several properties ask what the queues, the index and the requests looked like at the moment of
each event inside a transition, or what must stand in the state afterwards. This fold is a second
reading of the rules, written from the events alone: it takes them for the decisions, keeps books of
its own, and calls neither the pool's verbs nor the scheduler's moves nor policy's choice functions.

Events may be wrong. What cannot be folded at all (somebody ends who was not there) is a *problem*:
the fold stops, and every property that reads it (`servespec.properties.folded`) falls with that.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from attrs import define, evolve

from servespec.actions import Output
from servespec.chain import Chain, Tokens
from servespec.events import (
    Admitted,
    BlockRemoved,
    BlockStored,
    CacheCleared,
    Delivered,
    Event,
    Finished,
    Preempted,
    Refused,
    Scheduled,
    Skipped,
    Submitted,
)
from servespec.machine import Abort, Action, Complete, Discard, ResetCache, Schedule, Submit
from servespec.plan import PADDING, Plan, Planned
from servespec.pool import Blocks
from servespec.properties import readings
from servespec.properties.base import Step
from servespec.properties.books import BlockBooks, Moment, changed
from servespec.request import Request

_PASS = (Admitted, Scheduled, Skipped, Preempted, BlockRemoved, BlockStored)
TELLS: dict[type[Action], tuple[type[Event], ...]] = {
    Submit: (Submitted, Refused),
    Schedule: _PASS,
    Complete: (Delivered, BlockStored, Finished),
    Discard: (),
    Abort: (Finished,),
    ResetCache: (Preempted, CacheCleared, Refused),
}
"""The events that belong to each action."""


@define
class Fold:
    """Walks the events of one step; afterwards its books say what must be there."""

    step: Step
    blocks: BlockBooks
    waiting: list[Request]
    running: list[Request]
    in_flight: list[Plan]
    outputs: tuple[Output, ...]
    """What was sampled."""
    left: int
    """Tokens that the pass has left."""
    turn_left: int | None = None
    """Tokens that were left when somebody's turn began, while others make room for it: what they
    give back is for those behind it."""
    served: tuple[Planned, ...] = ()
    passed: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    """Who was admitted in this step; who gives way then runs again only if it is admitted again."""
    preempted: bool = False
    """Somebody gave way."""
    problem: str | None = None

    @staticmethod
    def of(step: Step) -> Fold:
        """The fold at the beginning of a step."""
        before, plans, outputs = step.before, step.before.in_flight, tuple[Output, ...]()
        if isinstance(step.action, Complete):
            plans, outputs = plans[1:], step.action.outputs
        return Fold(
            step,
            BlockBooks.of(step.machine.policy, before),
            list(before.waiting),
            list(before.running),
            list(plans),
            outputs,
            step.machine.config.max_num_batched_tokens,
        )

    @property
    def tables(self) -> dict[str, Blocks]:
        """The block tables of the living."""
        return {r.id: r.table for r in chain(self.running, self.waiting)}

    # --- the walk ------------------------------------------------------------------------

    def moments(self) -> Iterator[Moment]:
        """Every event with the moment before it; ends when all of the step is folded, or nothing
        more of it can be."""
        events, told = self.step.events, TELLS[type(self.step.action)]
        for at, event in enumerate(events):
            if not isinstance(event, told):
                self.problem = f"{event} tells of no {type(self.step.action).__name__}"
                return
            hits = self._hits(event, events[at:])
            yield Moment(
                event,
                tuple(self.blocks.queue),
                self.blocks.index,
                tuple(self.waiting),
                tuple(self.running),
                hits,
                self.left if self.turn_left is None else self.turn_left,
                self.served,
                self.passed,
                self.preempted,
            )
            self._fold(event, hits)
            if self.problem is not None:
                return
        match self.step.action:
            case Schedule():
                self.in_flight.append(Plan(self.served))
            case Complete():
                for table in self.step.before.in_flight[0].deferred:
                    self.blocks.release(table)
            case Discard():
                self._discard()
        if any(isinstance(e, Finished) for e in events):
            self._rank()

    @staticmethod
    def _hits(event: Event, rest: tuple[Event, ...]) -> int:
        if not isinstance(event, Admitted):
            return 0
        mine = (e for e in rest if isinstance(e, Scheduled) and e.id == event.id)
        scheduled = next(mine, None)
        return len(event.blocks) - (0 if scheduled is None else len(scheduled.new_blocks))

    def _fold(self, event: Event, hits: int) -> None:
        match event:
            case Submitted(id):
                self._arrive(id)
            case Admitted(id):
                self._admit(event, hits)
            case Scheduled(id):
                self._serve(event)
            case Skipped(id):
                self.passed += (id,)
                self.turn_left = None
            case Preempted(id):
                self._send_back(id)
            case Finished(id):
                self._leave(id)
            case Delivered(id):
                self._deliver(event)
            case BlockStored(block, key, _):
                self._store(block, key)
            case BlockRemoved(block, key):
                self.blocks.forget(block, key)
            case CacheCleared():
                self.blocks.clear()

    # --- requests ------------------------------------------------------------------------

    def _of(self, requests: list[Request], request_id: str, event: str) -> int | None:
        """Where a request stands; if it does not, that is a problem."""
        for at, r in enumerate(requests):
            if r.id == request_id:
                return at
        self.problem = f"{request_id} {event}, and does not stand where it must"
        return None

    def _arrive(self, request_id: str) -> None:
        asked = self.step.action
        if not isinstance(asked, Submit) or asked.id != request_id or request_id in self.tables:
            self.problem = f"{request_id} came, and did not ask or was there"
            return
        ranks = [r.arrival for r in chain(self.running, self.waiting)]
        arrival = max(ranks) + (not asked.with_last) if ranks else 0
        came = Request(
            asked.id,
            asked.namespace,
            asked.prompt,
            asked.max_tokens,
            asked.priority,
            asked.stop,
            arrival,
            keys=(),
        )
        self.waiting = readings.queued(self.step.machine.policy, self.waiting, came, False)

    def _admit(self, event: Admitted, hits: int) -> None:
        at = self._of(self.waiting, event.id, "was admitted")
        if at is None or hits < 0:
            self.problem = self.problem or f"{event.id} took more blocks than it has"
            return
        shared = event.blocks[:hits]
        self.blocks.hold(shared)
        admitted = changed(
            self.waiting.pop(at), computed=event.hit_tokens, table=shared, published=hits
        )
        self.running.append(admitted)
        self.joined += (event.id,)

    def _serve(self, event: Scheduled) -> None:
        at = self._of(self.running, event.id, "was scheduled")
        if at is None:
            return
        r = self.running[at]
        drafts: Tokens = r.drafts or (PADDING,) * event.drafts
        used, end = drafts[: event.drafts], r.computed + event.tokens
        table, yields = r.table + event.new_blocks, end >= r.length
        self.blocks.hold(event.new_blocks)
        entry = Planned(
            r.id,
            r.namespace,
            r.computed,
            r.text(r.computed, end) + used,
            used,
            table,
            len(event.new_blocks),
            yields,
            r.id in self.joined,
            r.prefilling,
        )
        self.running[at] = changed(
            r, computed=end, table=table, prefilling=not yields, published=r.published
        )
        self.served += (entry,)
        self.passed += (r.id,)
        self.left -= event.tokens
        self.turn_left = None

    def _send_back(self, request_id: str) -> None:
        turn = next((r.id for r in self.running if r.id not in self.passed), None)
        at = self._of(self.running, request_id, "was preempted")
        if at is None:
            return
        if request_id == turn:
            self.turn_left = None
        elif self.turn_left is None:
            self.turn_left = self.left
        victim = self.running.pop(at)
        self.left += sum(len(e.tokens) for e in self.served if e.id == request_id)
        self.served = tuple(e for e in self.served if e.id != request_id)
        self.passed = tuple(i for i in self.passed if i != request_id)
        self.preempted = True
        back = changed(victim, computed=0, table=(), published=0)
        self.waiting = readings.queued(self.step.machine.policy, self.waiting, back, True)
        self._let_go(victim)

    def _leave(self, request_id: str) -> None:
        stands = self.running if any(r.id == request_id for r in self.running) else self.waiting
        at = self._of(stands, request_id, "ended")
        if at is not None:
            self._let_go(stands.pop(at))

    def _deliver(self, event: Delivered) -> None:
        at = self._of(self.running, event.id, "got tokens")
        entry = self.step.before.in_flight[0].entry(event.id)
        output = next((o for o in self.outputs if o.id == event.id), None)
        if at is None or entry is None or output is None:
            self.problem = self.problem or f"{event.id} got tokens, and nothing was sampled for it"
            return
        r = self.running[at]
        used, kept = len(entry.drafts), len(event.tokens)
        self.running[at] = changed(
            r,
            computed=r.computed - (1 + used - kept),
            table=r.table,
            published=r.published,
            drafts=output.drafts,
            prefilling=r.prefilling,
            output=r.output + event.tokens,
        )

    def _rank(self) -> None:
        """Arrival is a rank: when somebody has left, the younger ones move up."""
        known = sorted({r.arrival for r in chain(self.running, self.waiting)})
        if known and known[-1] >= len(known):
            for requests in (self.running, self.waiting):
                requests[:] = [evolve(r, arrival=known.index(r.arrival)) for r in requests]

    # --- blocks --------------------------------------------------------------------------

    def _store(self, block: int, key: Chain) -> None:
        for at, r in enumerate(self.running):
            if r.published < len(r.table) and r.table[r.published] == block:
                self.running[at] = changed(
                    r,
                    computed=r.computed,
                    table=r.table,
                    published=r.published + 1,
                    drafts=r.drafts,
                    prefilling=r.prefilling,
                )
                self.blocks.store(block, key)
                return
        self.problem = f"block {block} was stored, and is nobody's next to publish"

    def defers(self, request_id: str) -> bool:
        """Its table is held until a step in flight is done."""
        flying = any(plan.entry(request_id) is not None for plan in self.in_flight)
        return flying and readings.held_until_done(self.step.machine.policy)

    def _let_go(self, gone: Request) -> None:
        """Its entries in flight are cancelled, its table is released or deferred."""
        deferred = self.defers(gone.id)
        flying = [at for at, plan in enumerate(self.in_flight) if plan.entry(gone.id) is not None]
        for at in flying:
            plan = self.in_flight[at]
            mine = plan.entry(gone.id)
            entries = (evolve(e, cancelled=True) if e is mine else e for e in plan.entries)
            self.in_flight[at] = Plan(tuple(entries), plan.deferred)
        if deferred:
            plan = self.in_flight[flying[-1]]
            self.in_flight[flying[-1]] = Plan(plan.entries, (*plan.deferred, gone.table))
        else:
            self.blocks.release(gone.table)

    def _discard(self) -> None:
        plan, policy = self.in_flight.pop(), self.step.machine.policy
        for entry in plan.entries:
            at = next((i for i, r in enumerate(self.running) if r.id == entry.id), None)
            if entry.cancelled or at is None:
                continue
            keep = len(entry.table) - readings.given_back(policy, entry.new_blocks)
            r = self.running[at]
            self.blocks.release(r.table[keep:])
            self.running[at] = changed(
                r,
                computed=entry.start,
                table=r.table[:keep],
                published=r.published,
                prefilling=entry.was_prefilling,
            )
        for table in plan.deferred:
            self.blocks.release(table)
