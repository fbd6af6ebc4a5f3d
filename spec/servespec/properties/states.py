"""Properties of every state: who owns a block, what a table holds, what the index names."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise, takewhile
from weakref import WeakKeyDictionary

from attrs import evolve

from servespec import policy as choose
from servespec.chain import Chain, Namespace, Tokens, link
from servespec.config import Config, usable_blocks
from servespec.machine import Machine
from servespec.plan import State
from servespec.policy import Memory, Policy, Unhashed
from servespec.properties.base import (
    HELD,
    Fall,
    Falls,
    Outcome,
    holders,
    state_property,
    verdict,
)
from servespec.request import Request


@state_property("OWN-1")
def one_place(machine: Machine, state: State) -> Outcome:
    """Every usable block is in exactly one place: once in the free queue, or in a block table."""
    free, held = set(state.pool.free), set(holders(state))
    usable = set(range(machine.policy.first_block, machine.config.num_blocks))
    if len(free) != len(state.pool.free):
        return Fall(f"the free queue {state.pool.free} holds a block twice")
    if both := free & held:
        return Fall(f"blocks {sorted(both)} are free and in a table")
    if lost := usable - free - held:
        return Fall(f"blocks {sorted(lost)} are neither free nor in a table")
    if alien := (free | held) - usable:
        return Fall(f"blocks {sorted(alien)} may not be handed out")
    return HELD


@state_property("OWN-2")
def counts_are_holders(machine: Machine, state: State) -> Outcome:
    """A block's reference count is the number of tables that hold it, those of deferred releases
    included."""
    held = holders(state)
    wrong = {
        b: (block.ref_count, held[b])
        for b, block in enumerate(state.pool.blocks)
        if block.ref_count != held[b]
    }
    return Fall(f"block: (count, tables) = {wrong}") if wrong else HELD


@state_property("OWN-3")
def waiting_holds_nothing(machine: Machine, state: State) -> Outcome:
    """A request that waits holds nothing, and when nobody is left the pool is whole."""
    for r in state.waiting:
        if r.table or r.computed or r.published:
            return Fall(f"{r.id} waits with table {r.table}, {r.computed} tokens computed")
    gone = not state.live and not any(plan.deferred for plan in state.in_flight)
    if gone and len(state.pool.free) != usable_blocks(machine.config, machine.policy):
        return Fall(f"nobody is left, and only {len(state.pool.free)} blocks are free")
    return verdict(bool(state.waiting) or gone, None)


@state_property("TAB-1")
def table_fits(machine: Machine, state: State) -> Outcome:
    """No block stands twice in a table; a table holds ⌈C/bs⌉ blocks at least, and between steps
    no more than drafts and look-ahead can have asked for; reserved, it holds exactly max_model_len
    slots."""
    config, policy = machine.config, machine.policy
    ahead = config.num_speculative_tokens + config.num_lookahead_tokens
    for r in state.running:
        if len(set(r.table)) != len(r.table):
            return Fall(f"the table of {r.id} holds a block twice: {r.table}")
        least = config.blocks_for(r.computed)
        # Hits without a cap cover the last token before it is computed (rule 11).
        shared = r.computed + (1 if policy.hit_cap is choose.HitCap.NONE else 0)
        reach = min(max(r.computed + ahead, shared), config.max_model_len)
        most = max(least, config.blocks_for(reach))
        if policy.memory is Memory.RESERVED:
            least = most = config.blocks_for(config.max_model_len)
        busy = any(plan.entry(r.id) for plan in state.in_flight)
        if len(r.table) < least or (not busy and len(r.table) > most):
            return Fall(f"{r.id}: {len(r.table)} blocks for C = {r.computed}: {least} to {most}")
    return verdict(bool(state.running), None)


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
    return policy.publishes_unwritten and policy.victim is choose.Victim.WORST_PRIORITY


UNSCHEDULED = Falls(
    under=publishes_what_it_unschedules,
    when="victims are chosen by priority, and blocks published at scheduling",
    why=(
        "a victim that this pass had already scheduled is scheduled no more, but the blocks "
        "published for it stay findable: the next hit reads slots that nobody ever wrote"
    ),
    trace="CON-1.jsonl",
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


@state_property("IDX-1")
def no_stale_entry(machine: Machine, state: State) -> Outcome:
    """Every index entry names a resident block that carries its key."""
    index = state.pool.index.copies
    for key, copies in index.items():
        if not copies or len(set(copies)) != len(copies):
            return Fall(f"{key!r} is indexed under {copies}")
        for b in copies:
            if state.pool.blocks[b].key is not key:
                return Fall(f"{key!r} names block {b}, which carries {state.pool.blocks[b].key!r}")
    return verdict(bool(index), None)


@state_property("IDX-2")
def index_is_complete(machine: Machine, state: State) -> Outcome:
    """A key is found if and only if a resident block carries it: each copy is in the index."""
    carried: dict[Chain, set[int]] = {}
    for b, block in enumerate(state.pool.blocks):
        if block.key is not None:
            carried.setdefault(block.key, set()).add(b)
    found = {key: set(copies) for key, copies in state.pool.index.copies.items()}
    for key in carried.keys() | found.keys():
        if carried.get(key) != found.get(key):
            return Fall(
                f"{key!r}: blocks {carried.get(key)} carry it, the index has {found.get(key)}"
            )
    return verdict(bool(carried), None)


@state_property("IDX-3")
def keys_are_injective(machine: Machine, state: State) -> Outcome:
    """A key stands for one (adapter, salt, tokens, position), and a request's keys stand for its
    own text in its own namespace."""
    size = machine.config.block_size
    for r in state.live:
        if not r.keys:
            continue
        path = tuple(r.keys[-1].path())[::-1]
        text = tuple(t for node in path for t in node.tokens)
        if path != r.keys or text != r.text(0, len(r.keys) * size):
            return Fall(f"the keys of {r.id} stand for other tokens than its own")
        if any(node.namespace != r.namespace for node in path):
            return Fall(f"the keys of {r.id} stand for another namespace than {r.namespace}")
    meanings = {(key.namespace, key.runs()): key for key in state.pool.index.copies}
    if len(meanings) != len(state.pool.index.copies):
        return Fall("two keys stand for the same namespace and tokens")
    return verdict(bool(meanings) or any(r.keys for r in state.live), None)


@state_property(
    "EVI-1",
    Falls(
        under=lambda config, policy: policy.unhashed is Unhashed.IN_PLACE,
        when="un-hashed blocks are freed in place",
        why="a freed block without a key stands behind older ones with one, and these go first",
        trace="EVI-1.jsonl",
    ),
)
def unhashed_blocks_go_first(machine: Machine, state: State) -> Outcome:
    """No block with a key stands before one without in the free queue: nothing cached is evicted
    while an idle block without content is there."""
    hashed = [state.pool.blocks[b].key is not None for b in state.pool.free]
    if any(a and not b for a, b in pairwise(hashed)):
        return Fall(f"the free queue {state.pool.free} has keys at {hashed}")
    return verdict(True in hashed and False in hashed, None)
