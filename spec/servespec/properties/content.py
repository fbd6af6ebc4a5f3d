"""Properties of content: what is read is what should have been written.

Content is a ghost (`servespec.pool`): each slot remembers what was written into it, as a chain of
single tokens through the slots as they were read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import takewhile
from weakref import WeakKeyDictionary

from attrs import evolve

from servespec import pool as blocks
from servespec.chain import Chain, Namespace, Tokens, link
from servespec.config import Config
from servespec.events import BlockStored, Preempted, Scheduled
from servespec.machine import Complete, Machine, Schedule, written
from servespec.plan import Plan, State
from servespec.policy import Policy, Victim
from servespec.properties.base import (
    VACUOUS,
    Fall,
    Falls,
    Outcome,
    Step,
    state_property,
    step_property,
    verdict,
)
from servespec.request import Request


@lru_cache(maxsize=4096)
def own_text(namespace: Namespace, text: Tokens) -> tuple[Chain, ...]:
    """What the slots of a text must hold, one token a link."""
    value: Chain | None = None
    found = []
    for token in text:
        value = link(namespace, value, (token,))
        found.append(value)
    return tuple(found)


def unwritten(state: State, block_size: int) -> set[tuple[int, int]]:
    """Slots (block, offset) that a step in flight has still to write."""
    return {
        (e.table[p // block_size], p % block_size)
        for plan in state.in_flight
        for e in plan.entries
        for p in range(e.start, e.start + len(e.tokens))
    }


def wrong_slots(state: State, request: Request, block_size: int) -> Iterator[int]:
    """Computed positions that do not hold the request's own text."""
    own = own_text(request.namespace, request.text(0, request.computed))
    pending: set[tuple[int, int]] | None = None
    for at, b in enumerate(request.table):
        mine = own[at * block_size : (at + 1) * block_size]
        content = state.pool.blocks[b].content
        if content[: len(mine)] == mine:
            continue
        pending = unwritten(state, block_size) if pending is None else pending
        for offset, value in enumerate(mine):
            there = content[offset] if offset < len(content) else None
            if there is not value and (b, offset) not in pending:
                yield at * block_size + offset


def publishes_what_it_unschedules(config: Config, policy: Policy) -> bool:
    """A victim by priority may have been scheduled, and its blocks published, in the same pass."""
    return policy.publishes_unwritten and policy.victim is Victim.WORST_PRIORITY


def published_and_unscheduled(step: Step) -> bool:
    """A victim that this pass had already scheduled, and published blocks for, gave way in it."""
    stored: set[str] = set()
    scheduled = ""
    for e in step.events:
        match e:
            case Scheduled(id):
                scheduled = id
            case BlockStored():
                stored.add(scheduled)
            case Preempted(id) if id in stored:
                return isinstance(step.action, Schedule)
    return False


UNSCHEDULED = Falls(
    under=publishes_what_it_unschedules,
    when="victims are chosen by priority, and blocks published at scheduling",
    why=(
        "a victim that this pass had already scheduled is scheduled no more, but the blocks "
        "published for it stay findable: the next hit reads slots that nobody ever wrote"
    ),
    trace="CON-1.jsonl",
    cause=published_and_unscheduled,
    lasts=True,
)


@state_property("CON-1", UNSCHEDULED)
def content_is_own_text(machine: Machine, state: State) -> Outcome:
    """Every computed position that no step in flight has still to write, read through the table,
    holds the request's own text in its own namespace."""
    for r in state.running:
        wrong = next(wrong_slots(state, r, machine.config.block_size), None)
        if wrong is not None:
            return Fall(
                f"position {wrong} of {r.id}, block {r.table[wrong // machine.config.block_size]}, "
                "holds something else"
            )
    return verdict(any(r.computed for r in state.running), None)


_SLOTS: WeakKeyDictionary[Chain, tuple[Chain, ...]] = WeakKeyDictionary()


def slots_of(key: Chain) -> tuple[Chain, ...]:
    """What the slots of a block with this key must hold."""
    unknown = list(takewhile(lambda node: node not in _SLOTS, key.path()))
    for node in reversed(unknown):
        value = None if node.parent is None else _SLOTS[node.parent][-1]
        held = []
        for token in node.tokens:
            value = link(node.namespace, value, (token,))
            held.append(value)
        _SLOTS[node] = tuple(held)
    return _SLOTS[key]


@state_property("CON-3", evolve(UNSCHEDULED, trace="CON-3.jsonl"))
def found_content_is_its_key(machine: Machine, state: State) -> Outcome:
    """What can be found can be trusted: a block with a key holds, in every slot that no step in
    flight has still to write, what the key stands for."""
    pending: set[tuple[int, int]] | None = None
    for b, block in enumerate(state.pool.blocks):
        if block.key is None or block.content == slots_of(block.key):
            continue
        if pending is None:
            pending = unwritten(state, machine.config.block_size)
        for offset, value in enumerate(slots_of(block.key)):
            there = block.content[offset] if offset < len(block.content) else None
            if there is not value and (b, offset) not in pending:
                return Fall(f"slot {offset} of block {b} does not hold what {block.key!r} says")
    return verdict(bool(state.pool.index.copies), None)


@step_property("CON-1r", evolve(UNSCHEDULED, trace="CON-1r.jsonl"))
def reads_what_was_written(step: Step) -> Outcome:
    """All that a pass reads was written before it or in it: the last slot that it writes for a
    request holds the request's own text, and with it, link by link, all that was read."""
    if not isinstance(step.action, Complete):
        return VACUOUS
    plan, size = step.before.in_flight[0], step.machine.config.block_size
    pool = step.before.pool
    for e in plan.entries:
        last_read = blocks.read(pool, size, e.table, e.start - 1) if e.start else None
        if last_read is not None and last_read.namespace != e.namespace:
            return Fall(f"the pass of {e.id} from position {e.start} read another namespace")
        pool = written(step.machine, pool, Plan((e,)))
    live = [e for e in plan.entries if not e.cancelled]
    for e in live:
        request = step.before.find(e.id)
        last = e.start + len(e.tokens) - 1
        own = () if request is None else request.text(0, e.start) + e.tokens
        known = own_text(e.namespace, own)
        if last >= len(known) or blocks.read(pool, size, e.table, last) is not known[last]:
            return Fall(
                f"the pass of {e.id} over positions {e.start} to {last} read something else"
            )
    return verdict(bool(live), None)
