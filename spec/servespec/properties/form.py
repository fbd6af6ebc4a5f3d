"""What a step must be before anything can be asked of it.

Steps may come from somebody's engine, so they are not always what a machine makes: a table may name
a block that does not exist, an outcome may come without a plan. Of such a step the properties
cannot say what they say; they fall with what is malformed. What its *events* get wrong is told by
the fold (`servespec.properties.fold`).
"""

from __future__ import annotations

from itertools import chain

from servespec.actions import Action, Complete, Discard, Schedule
from servespec.machine import Machine
from servespec.plan import Planned, State
from servespec.pool import Blocks


def malformed(machine: Machine, before: State, action: Action, after: State) -> str | None:
    """The first thing that makes a step none; None if it is one."""
    wrong = None if _known(machine, before) else _misshapen(machine, before)
    wrong = wrong or _misshapen(machine, after) or _queue_of_plans(before, action, after)
    if wrong is None:
        _last[:] = [(machine, after)]
    return wrong


_last: list[tuple[Machine, State]] = []
"""The last state that was looked at and is one: mostly the next step begins with it."""


def _known(machine: Machine, state: State) -> bool:
    return bool(_last) and _last[0][0] is machine and _last[0][1] is state


def _queue_of_plans(before: State, action: Action, after: State) -> str | None:
    """A pass makes one plan, an outcome and a discard end one, nothing else does either."""
    more = {Schedule: 1, Complete: -1, Discard: -1}.get(type(action), 0)
    were, are = len(before.in_flight), len(after.in_flight)
    if are != were + more:
        return f"{type(action).__name__} with {were} plans in flight leaves {are}"
    return None


def _misshapen(machine: Machine, state: State) -> str | None:
    count, size = len(state.pool.blocks), machine.config.block_size
    if count != machine.config.num_blocks:
        return f"the pool has {count} blocks, not {machine.config.num_blocks}"
    live = state.live
    plans = state.in_flight
    named: list[Blocks] = [state.pool.free, *(r.table for r in live)]
    named += state.pool.index.copies.values()
    entries: list[Planned] = []
    for plan in plans:
        entries += plan.entries
        named += plan.deferred
    named += (e.table for e in entries)
    every = set(chain.from_iterable(named))
    if every and (min(every) < 0 or max(every) >= count):
        return f"blocks {sorted(b for b in every if not 0 <= b < count)} are none of the pool"
    if len({r.id for r in live}) != len(live):
        return f"an id is given twice: {[r.id for r in live]}"
    for e in entries:
        if not e.tokens or e.start < 0 or len(e.table) * size < e.start + len(e.tokens):
            return f"{e.id} computes tokens {e.tokens} at {e.start}, through the table {e.table}"
    return None
