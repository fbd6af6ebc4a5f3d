"""Properties of every state: who owns a block, what a table holds, what can be found."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from attrs import field, frozen

from servespec.chain import Chain, Namespace, Tokens
from servespec.config import usable_blocks
from servespec.events import Finished, Preempted, Scheduled
from servespec.machine import Complete, Discard, Machine
from servespec.plan import State
from servespec.policy import HitCap, Memory, Publish, Unhashed
from servespec.properties import readings
from servespec.properties.base import (
    HELD,
    Fall,
    Falls,
    Outcome,
    Step,
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
        b: (block.ref_count, held.get(b, 0))
        for b, block in enumerate(state.pool.blocks)
        if block.ref_count != held.get(b, 0)
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


@state_property("OWN-4")
def only_the_findable_is_shared(machine: Machine, state: State) -> Outcome:
    """A block without a key stands in one table at most: only what can be found is shared."""
    held = holders(state)
    nameless = {b: n for b, n in held.items() if state.pool.blocks[b].key is None}
    shared = [b for b, n in nameless.items() if n > 1]
    what = f"blocks {shared} have no key and stand in several tables"
    return verdict(bool(nameless), what if shared else None)


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
        shared = r.computed + (1 if policy.hit_cap is HitCap.NONE else 0)
        reach = min(max(r.computed + ahead, shared), config.max_model_len)
        most = max(least, config.blocks_for(reach))
        if policy.memory is Memory.RESERVED:
            least = most = config.blocks_for(config.max_model_len)
        busy = any(plan.entry(r.id) for plan in state.in_flight)
        if len(r.table) < least or (not busy and len(r.table) > most):
            return Fall(f"{r.id}: {len(r.table)} blocks for C = {r.computed}: {least} to {most}")
    return verdict(bool(state.running), None)


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
    for key in (*carried, *found):
        if carried.get(key) != found.get(key):
            return Fall(
                f"{key!r}: blocks {carried.get(key)} carry it, the index has {found.get(key)}"
            )
    return verdict(bool(carried), None)


@frozen(cache_hash=True)
class _Meaning:
    """What a key stands for, spelt out. Its hash is kept: long texts need not be compared."""

    text: Tokens
    namespace: Namespace | None
    """None if its links do not agree in one."""
    path: tuple[Chain, ...] = field(eq=False)
    full: bool = field(eq=False)
    """Every link is a block's worth of tokens, and says at which position."""


@lru_cache(maxsize=4096)
def _meaning(key: Chain, block_size: int) -> _Meaning:
    path = tuple(key.path())[::-1]
    apart = any(node.namespace != key.namespace for node in path)
    places, text = enumerate(path, 1), tuple(t for node in path for t in node.tokens)
    return _Meaning(
        text,
        None if apart else key.namespace,
        path,
        all(len(n.tokens) == block_size and n.length == i * block_size for i, n in places),
    )


@state_property("IDX-3")
def keys_are_injective(machine: Machine, state: State) -> Outcome:
    """A key stands for one (adapter, salt, tokens, position), and a request's keys stand for its
    own text in its own namespace."""
    size, index = machine.config.block_size, state.pool.index.copies
    asked = bool(index)
    for r in state.live:
        if not r.keys:
            continue
        asked, mine = True, _meaning(r.keys[-1], size)
        if mine.path != r.keys or mine.text != r.text(0, len(r.keys) * size):
            return Fall(f"the keys of {r.id} stand for other tokens than its own")
        if mine.namespace != r.namespace:
            return Fall(f"the keys of {r.id} stand for another namespace than {r.namespace}")
        if not mine.full:
            return Fall(f"the keys of {r.id} stand for other positions than its own")
    meanings = {key: _meaning(key, size) for key in index}
    for key, its in meanings.items():
        if its.namespace is None or not its.full:
            return Fall(f"{key!r} stands for no full blocks of one namespace")
    if len(set(meanings.values())) < len(index):
        return Fall("two keys stand for the same namespace and tokens")
    return verdict(asked, None)


@state_property("PUB-1")
def full_blocks_are_published(machine: Machine, state: State) -> Outcome:
    """Where blocks are shared, a request knows the key of every full block of its text; and those
    of its table carry them as far as it is computed, at once or once the step has run, by policy;
    no block behind these carries any. Where nothing is shared, nothing has a key."""
    size, shares = machine.config.block_size, readings.full_blocks_have_keys(machine.policy)
    for r in state.live:
        if len(r.keys) != (r.length // size if shares else 0):
            return Fall(f"{r.id} knows {len(r.keys)} keys of {r.length} tokens")
    for r in state.running:
        least, most = _published(machine, state, r)
        carried = tuple(state.pool.blocks[b].key for b in r.table)
        if not least <= r.published <= most:
            return Fall(f"{r.id} has published {r.published} blocks, {least} to {most} are due")
        if carried[: r.published] != r.keys[: r.published] or any(carried[r.published :]):
            return Fall(f"{r.id} has published {r.published} blocks, its table carries {carried}")
    return verdict(bool(state.running), None)


def _published(machine: Machine, state: State, r: Request) -> tuple[int, int]:
    """Blocks of a running request that must, and that can, carry keys."""
    computed = r.computed
    if machine.policy.publish is Publish.AFTER_STEP:
        mine = (plan.entry(r.id) for plan in state.in_flight)
        starts = (e.start for e in mine if e is not None)
        computed = min((computed, *starts))
    # Hits without a cap cover the last token before it is computed (rule 11).
    shared = computed + (machine.policy.hit_cap is HitCap.NONE)
    size, known = machine.config.block_size, len(r.keys)
    return min(computed // size, known), min(shared // size, known)


def unhashed_was_let_go(step: Step) -> bool:
    """A block without a key was let go, and went behind those that were free."""
    ends = any(isinstance(e, Preempted | Finished) for e in step.events)
    if not ends and not isinstance(step.action, Complete | Discard):
        return False
    taken = {b for e in step.events if isinstance(e, Scheduled) for b in e.new_blocks}
    was, there = step.before.pool.blocks, step.after.pool
    return any(
        there.blocks[b].key is None and (was[b].ref_count > 0 or b in taken) for b in there.free
    )


@state_property(
    "EVI-1",
    Falls(
        under=lambda config, policy: policy.unhashed is Unhashed.IN_PLACE,
        when="un-hashed blocks are freed in place",
        why="a freed block without a key stands behind older ones with one, and these go first",
        trace="EVI-1.jsonl",
        cause=unhashed_was_let_go,
        lasts=True,
    ),
)
def unhashed_blocks_go_first(machine: Machine, state: State) -> Outcome:
    """No block with a key stands before one without in the free queue: nothing cached is evicted
    while an idle block without content is there."""
    hashed = [state.pool.blocks[b].key is not None for b in state.pool.free]
    if any(a and not b for a, b in pairwise(hashed)):
        return Fall(f"the free queue {state.pool.free} has keys at {hashed}")
    return verdict(True in hashed and False in hashed, None)
