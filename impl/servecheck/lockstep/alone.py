"""An engine alone along a trace: it is held against what was recorded, and nobody else decides.

Theory of operation. The actions of the trace are given to a new engine; what it shows is compared
with what the trace says came of them. The specification is not run. What the trace says is folded
from its events (`Told`): who was refused, what a plan holds, who ended and why, and the blocks and
first positions that follow from these; where a line has a snapshot, and the engine shows its state,
all of that. A field that only one of the two shows is not compared, and counted as not seen.

    line.action ──▶ engine ──▶ what it shows ─┐
    line.events ──▶ Told ────────────────────▶ Comparison ──▶ the first line that differs

An engine whose pool alone can be driven decides nothing by itself, so it cannot go alone; one that
cannot have these sizes, or cannot do an action, goes no further: that is undetermined. A difference
is run a second time, on a new engine: if it does not come again, the engine is nondeterministic.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Literal, assert_never

from attrs import define, evolve, field, frozen

from servecheck.engines.protocol import (
    Capabilities,
    Copies,
    EngineGone,
    Level,
    SeenEntry,
    SeenOutcome,
    SeenPlan,
    SeenPool,
    SeenRequest,
    SeenState,
    StateEngine,
    StepEngine,
    Unsupported,
    Verb,
)
from servecheck.lockstep.compare import Comparison, Difference
from servecheck.lockstep.follow import ADDRESS, ANSWER, EngineFollower, allowed
from servecheck.lockstep.subject import Subject
from servecheck.trace.model import Line, Observation, Trace
from servespec.actions import Abort, Action, Complete, Discard, ResetCache, Schedule, Submit
from servespec.events import Admitted, Finished, Preempted, Refused, Scheduled
from servespec.pool import Blocks

UNKNOWN = -1
"""A first position that the events do not tell."""

Verdict = Literal["holds", "falls", "undetermined", "nondeterministic"]


@frozen
class Alone:
    """How far an engine does what a trace says."""

    engine: Capabilities | None
    """None: it could not be made."""
    actions: int
    """Of the trace."""
    agreed: int
    """Actions before the first one that differs, or could not be done."""
    differences: tuple[Difference, ...]
    """Of that action; `expected` is what was recorded."""
    compared: Counter[str]
    unseen: Counter[str]
    stopped: str | None = None
    """Why the engine went no further, although nothing differs."""
    repeated: bool = True
    """A second engine did the same."""

    @property
    def verdict(self) -> Verdict:
        if not self.repeated:
            return "nondeterministic"
        if self.differences:
            return "falls"
        whole = self.agreed == self.actions and self.stopped is None
        return "holds" if whole and self.compared.total() else "undetermined"


def alone(subject: Subject, trace: Trace) -> Alone:
    """Run an engine along a trace; where it differs, a second one too.

    Raises:
        EngineError: it is not what it says it is.
    """
    first = _once(subject, trace)
    if not first.differences:
        return first
    second = _once(subject, trace)
    same = (first.agreed, first.differences) == (second.agreed, second.differences)
    return evolve(first, repeated=same)


def _once(subject: Subject, trace: Trace) -> Alone:
    comparison = Comparison.of(trace.header.policy)
    counts = (comparison.compared, comparison.unseen)
    actions = len(trace.lines)
    try:
        made = subject.make(trace.machine)
    except (Unsupported, EngineGone) as error:
        return Alone(None, actions, 0, (), *counts, str(error))
    said = made.capabilities
    engine = made.engine if isinstance(made, EngineFollower) else None
    if said.level < Level.STEPS or not isinstance(engine, StepEngine):
        level = said.level.name.lower()
        what = f"at level {level} an engine does not schedule by itself: leave --alone out"
        return Alone(said, actions, 0, (), *counts, what)
    run = _Run(engine, comparison, said.level, Told())
    for done, line in enumerate(trace.lines):
        if not _able(engine, trace, line.action, run.told):
            what = f"{said.name} says that it cannot do this action"
            return Alone(said, actions, done, (), *counts, what)
        try:
            found = run.do(line)
        except EngineGone as error:
            return Alone(said, actions, done, (), *counts, f"it is gone: {error}")
        if found:
            return Alone(said, actions, done, found, *counts)
    return Alone(said, actions, actions, (), *counts)


def _able(engine: StepEngine, trace: Trace, action: Action, told: Told) -> bool:
    """What the engine says that it can do covers the action."""
    busy = isinstance(action, Abort) and any(action.id in plan for plan in told.in_flight)
    can = engine.capabilities.can
    return allowed(engine, trace.machine.initial(), action) and (
        not busy or can(Verb.ABORT_IN_FLIGHT)
    )


# --- what a trace tells ---------------------------------------------------------------------


@define
class Told:
    """What follows from the events of a trace so far, without any rule of scheduling."""

    tables: dict[str, Blocks] = field(factory=dict)
    """By id, as far as they are known: a step that is discarded gives back blocks, and the events
    do not say which."""
    computed: dict[str, int] = field(factory=dict)
    """First position of the next pass, as far as it is known: not behind drafts."""
    in_flight: deque[dict[str, int]] = field(factory=deque)
    """Plans, each with the first positions of those in it who are still there."""

    def plan(self, line: Line) -> SeenPlan:
        """Take in a line on which a plan was made; the plan, with what is known of it."""
        entries: dict[str, SeenEntry] = {}
        preempted: list[str] = []
        new: set[str] = set()
        for event in line.events:
            match event:
                case Admitted(id, hits, table):
                    self.tables[id], self.computed[id] = table, hits
                    new.add(id)
                case Scheduled():
                    entries[event.id] = self._entry(event, event.id in new)
                case Preempted(id):
                    preempted.append(id)
                    entries.pop(id, None)
        self.in_flight.append({e.id: e.start for e in entries.values()})
        self.leave(line)
        return SeenPlan(tuple(entries.values()), tuple(preempted))

    def _entry(self, event: Scheduled, admitted: bool) -> SeenEntry:
        table, start = self.tables.get(event.id), self.computed.pop(event.id, None)
        if table is not None and not admitted:
            table = self.tables[event.id] = table + event.new_blocks
        if start is not None and not event.drafts:
            self.computed[event.id] = start + event.tokens
        first = UNKNOWN if start is None else start
        return SeenEntry(event.id, first, event.tokens, None if event.drafts else (), table)

    def outcome(self, line: Line) -> SeenOutcome:
        """Take in a line on which a plan had run; who ended with it."""
        if self.in_flight:
            self.in_flight.popleft()
        self.leave(line)
        return SeenOutcome(tuple((e.id, e.reason) for e in line.events if isinstance(e, Finished)))

    def discard(self) -> None:
        """The newest plan never ran."""
        for request_id, start in (self.in_flight.pop() if self.in_flight else {}).items():
            self.tables.pop(request_id, None)
            self.computed.pop(request_id, None)
            if start != UNKNOWN:
                self.computed[request_id] = start

    def leave(self, line: Line) -> None:
        """Forget who has left the running queue, by what is told on a line."""
        for event in line.events:
            if isinstance(event, Preempted | Finished):
                self.tables.pop(event.id, None)
                self.computed.pop(event.id, None)
                for plan in self.in_flight:
                    plan.pop(event.id, None)


def snapshot(state: Observation) -> SeenState:
    """A snapshot, as an engine would show it."""
    seen = {
        r.id: SeenRequest(r.id, r.computed, r.length, r.table, r.drafts) for r in state.requests
    }
    index = tuple(Copies(copies.key, copies.blocks) for copies in state.index)
    return SeenState(
        SeenPool(state.free, state.ref_counts, index),
        tuple(seen[i] for i in state.running),
        tuple(seen[i] for i in state.waiting),
    )


# --- the engine -----------------------------------------------------------------------------


@define
class _Run:
    """An engine under way."""

    engine: StepEngine
    comparison: Comparison
    level: Level
    told: Told

    def do(self, line: Line) -> tuple[Difference, ...]:
        """Give the engine the action of a line; where it shows something else.

        Raises:
            EngineGone: it is gone, and showed nothing else before.
        """
        found: list[Difference] = []
        try:
            found.extend(self._compared(line))
        except EngineGone:
            if not found:
                raise
        except Exception as error:
            what = ADDRESS.sub("0x…", f"{type(error).__name__}: {error}")
            found.append(Difference(ANSWER, "no error", what))
        return tuple(found)

    def _compared(self, line: Line) -> Iterator[Difference]:
        engine, compare, told = self.engine, self.comparison, self.told
        refused = any(isinstance(event, Refused) for event in line.events)
        match line.action:
            case Submit():
                yield from compare.answer("accepted", not refused, engine.submit(line.action))
            case Schedule():
                said = told.plan(line)
                yield from self._plan(said, engine.schedule(), line)
            case Complete(outputs):
                live = told.in_flight[0] if told.in_flight else {}
                mine = [output for output in outputs if output.id in live]
                yield from compare.outcome(told.outcome(line), engine.complete(mine))
            case Discard():
                told.discard()
                engine.discard()
            case Abort(id):
                known = any(isinstance(event, Finished) for event in line.events)
                yield from compare.answer("aborted", known, engine.abort(id))
            case ResetCache(preempt_running):
                answer = engine.reset_cache(preempt_running)
                yield from compare.answer("reset", not refused, answer)
            case _:
                assert_never(line.action)
        told.leave(line)
        if self.level is Level.STATE and isinstance(engine, StateEngine):
            if line.state is not None:
                yield from compare.state(snapshot(line.state), engine.see_state())
            else:
                compare.unseen["state between snapshots"] += 1

    def _plan(self, said: SeenPlan, seen: SeenPlan, line: Line) -> Iterator[Difference]:
        """Compare a plan. Of drafts the events tell how many there are."""
        counts = {e.id: e.drafts for e in line.events if isinstance(e, Scheduled)}
        known = {e.id: e for e in said.entries}
        entries: list[SeenEntry] = []
        for entry in seen.entries:
            mine = known.get(entry.id)
            if mine is not None and entry.drafts is not None and mine.drafts is None:
                yield from self.comparison.number(
                    f"plan of {entry.id}: number of drafts", counts[entry.id], len(entry.drafts)
                )
            entries.append(entry if mine is None else _masked(entry, mine))
        yield from self.comparison.plan(said, evolve(seen, entries=tuple(entries)))
        pairs = zip(said.entries, seen.entries, strict=False)
        unknown = sum(mine.start == UNKNOWN for mine, _ in pairs)
        self.comparison.compared["start"] -= unknown
        self.comparison.unseen["start"] += unknown


def _masked(seen: SeenEntry, told: SeenEntry) -> SeenEntry:
    """An entry without what the trace does not tell of it."""
    return evolve(
        seen,
        start=UNKNOWN if told.start == UNKNOWN else seen.start,
        drafts=None if told.drafts is None else seen.drafts,
        table=None if told.table is None else seen.table,
    )
