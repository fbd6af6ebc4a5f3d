"""From the specification's values to what a trace shows of them, and the digest of a state.

Only here does a trace look into a state. When the specification is built otherwise, this file
changes, and the traces that are there must go on agreeing: a digest is over the observation as
canonical JSON (keys sorted, no spaces, UTF-8), so it depends on the names and values of
`model.Observation` and on nothing else; never on an order of attributes or on `hash`.
"""

from __future__ import annotations

from hashlib import sha256

from servecheck.recording.digest import content_name
from servecheck.trace import model
from servecheck.trace.codec import canonical
from servecheck.trace.model import (
    Observation,
    SeenCopies,
    SeenEntry,
    SeenPlan,
    SeenRequest,
    TracedEvent,
)
from servespec.events import BlockRemoved, BlockStored, Event
from servespec.plan import Plan, Planned, State
from servespec.request import Request


def traced(event: Event) -> TracedEvent:
    """An event as a trace shows it."""
    match event:
        case BlockStored(block, key, parent):
            before = None if parent is None else content_name(parent)
            return model.BlockStored(block, content_name(key), before)
        case BlockRemoved(block, key):
            return model.BlockRemoved(block, content_name(key))
        case _:
            return event


def observe(state: State) -> Observation:
    """A state as a protocol shows it."""
    pool = state.pool
    copies = [SeenCopies(content_name(key), held) for key, held in pool.index.copies.items()]
    return Observation(
        free=pool.free,
        ref_counts=tuple(block.ref_count for block in pool.blocks),
        keys=tuple(None if b.key is None else content_name(b.key) for b in pool.blocks),
        index=tuple(sorted(copies, key=lambda seen: seen.key)),
        requests=tuple(_request(r) for r in state.live),
        running=tuple(r.id for r in state.running),
        waiting=tuple(r.id for r in state.waiting),
        in_flight=tuple(_plan(plan) for plan in state.in_flight),
    )


def digest_of(seen: Observation) -> str:
    """16 hex digits: the same for the same observation, on every machine and in every version."""
    return sha256(canonical(seen)).hexdigest()[:16]


def _request(r: Request) -> SeenRequest:
    return SeenRequest(r.id, r.computed, r.length, r.table, r.published, r.drafts, r.output)


def _plan(plan: Plan) -> SeenPlan:
    return SeenPlan(tuple(_entry(entry) for entry in plan.entries), plan.deferred)


def _entry(e: Planned) -> SeenEntry:
    return SeenEntry(
        e.id,
        e.start,
        e.tokens,
        e.drafts,
        e.table,
        e.new_blocks,
        e.yields,
        e.admitted,
        e.was_prefilling,
        e.cancelled,
    )
