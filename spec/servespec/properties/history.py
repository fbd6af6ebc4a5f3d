"""Properties of histories: monitors that remember a bounded part of what they saw."""

from __future__ import annotations

from attrs import evolve, frozen

from servespec.events import Admitted, BlockRemoved, Finished, Preempted
from servespec.machine import Complete, Discard, Machine, Schedule
from servespec.plan import Planned, State
from servespec.pool import Blocks
from servespec.properties import readings
from servespec.properties.base import (
    Fall,
    Monitor,
    Outcome,
    Renamable,
    Renaming,
    Step,
    monitor_property,
    verdict,
)


def idle_cached(state: State) -> frozenset[int]:
    """Blocks with a key that nobody holds: what can be evicted."""
    pool = state.pool
    return frozenset(
        b for b, block in enumerate(pool.blocks) if block.key is not None
    ).intersection(pool.free)


@frozen
class _Ages:
    """Ghost clock: idle cached blocks, grouped by the transition that released them, oldest
    first."""

    groups: tuple[frozenset[int], ...]

    def after(self, step: Step) -> tuple[Renamable, Outcome]:
        if step.problem is not None:
            return self, Fall(step.problem)
        evicted = {e.block for e in step.events if isinstance(e, BlockRemoved)}
        now = idle_cached(step.after)
        told = {b for e in step.events if isinstance(e, Admitted) for b in e.blocks}
        survived = [group & now - evicted - told for group in self.groups]
        problem = None
        for b in sorted(evicted):
            age = next((i for i, g in enumerate(self.groups) if b in g), None)
            older = frozenset[int]().union(*survived[:age])
            if older:
                problem = f"block {b} was evicted, {sorted(older)} had been idle for longer"
        known = frozenset[int]().union(*survived)
        groups = tuple(g for g in (*survived, now - known) if g)
        return _Ages(groups), verdict(bool(evicted), problem)

    def renamed(self, names: Renaming) -> Renamable:
        return _Ages(tuple(frozenset(names.blocks[b] for b in group) for group in self.groups))


@monitor_property("LRU-1h")
def least_recently_released_is_evicted(machine: Machine, state: State) -> Monitor:
    """Among the idle blocks with a key, the evicted one was released earliest."""
    return _Ages((idle_cached(state),))


@frozen
class _Row:
    """What a worker keeps of one request."""

    id: str
    table: Blocks
    computed: int


@frozen
class _Worker:
    rows: tuple[_Row, ...]
    plans: tuple[tuple[Planned, ...], ...]

    def after(self, step: Step) -> tuple[Renamable, Outcome]:
        if step.problem is not None or len(self.plans) != len(step.before.in_flight):
            return self, Fall(step.problem or f"the worker was told of {len(self.plans)} plans")
        rows = {row.id: row for row in self.rows}
        plans, problem = list(self.plans), None
        for e in step.events:
            if isinstance(e, Preempted | Finished):
                rows.pop(e.id, None)
        match step.action:
            case Schedule():
                plan = step.after.in_flight[-1].entries
                plans.append(plan)
                for entry in plan:
                    problem = problem or _told(rows, entry)
            case Complete():
                _completed(rows, plans.pop(0), step.action)
            case Discard():
                for entry in plans.pop():
                    if entry.id in rows:
                        back = readings.given_back(step.machine.policy, entry.new_blocks)
                        kept = entry.table[: len(entry.table) - back]
                        rows[entry.id] = _Row(entry.id, kept, entry.start)
        mine = {row.id: (row.table, row.computed) for row in rows.values()}
        theirs = {r.id: (r.table, r.computed) for r in step.after.running}
        if problem is None and mine != theirs:
            problem = f"the worker has {mine}, the scheduler {theirs}"
        return _Worker(tuple(rows.values()), tuple(plans)), verdict(bool(mine), problem)

    def renamed(self, names: Renaming) -> Renamable:
        rows = tuple(_Row(names.ids[r.id], names.table(r.table), r.computed) for r in self.rows)
        plans = (tuple(_renamed(entry, names) for entry in plan) for plan in self.plans)
        return _Worker(rows, tuple(plans))


def _renamed(entry: Planned, names: Renaming) -> Planned:
    """Who has left the state has no name any more."""
    return evolve(
        entry,
        id=names.ids.get(entry.id, ""),
        namespace=names.namespaces.get(entry.namespace, entry.namespace),
        tokens=names.text(entry.tokens),
        drafts=names.text(entry.drafts),
        table=names.table(entry.table),
    )


def _told(rows: dict[str, _Row], entry: Planned) -> str | None:
    """The worker is told of one scheduled request: a whole table once, then only what is new."""
    first = len(entry.table) - entry.new_blocks
    row = rows.get(entry.id)
    if not entry.admitted:
        if row is None:
            return f"the worker has no row for {entry.id}"
        if row.table + entry.table[first:] != entry.table or row.computed != entry.start:
            return f"the worker's row {row} is not continued by {entry}"
    rows[entry.id] = _Row(entry.id, entry.table, entry.start + len(entry.tokens))
    return None


def _completed(rows: dict[str, _Row], plan: tuple[Planned, ...], action: Complete) -> None:
    """The worker's own sampler tells it how many drafts were rejected."""
    sampled = {output.id: output.tokens for output in action.outputs}
    for entry in plan:
        row = rows.get(entry.id)
        if row is not None and entry.yields and not entry.cancelled:
            rejected = len(entry.drafts) - (len(sampled.get(entry.id, ())) - 1)
            rows[entry.id] = _Row(entry.id, row.table, row.computed - rejected)


@monitor_property("PLAN-1")
def worker_mirrors_scheduler(machine: Machine, state: State) -> Monitor:
    """A worker that folds the plans, and knows who was preempted or has ended, has the scheduler's
    tables, rows and counts."""
    rows = tuple(_Row(r.id, r.table, r.computed) for r in state.running)
    return _Worker(rows, tuple(plan.entries for plan in state.in_flight))
