"""The pool as a machine of its own: `CacheMachine`, for engines that show only their cache.

Theory of operation. A cache has a pool and some slots. A text is *allocated* into the lowest idle
slot: what the index has of it is shared, the rest is taken from the free queue, and its full
blocks are published. A slot is *freed*. The cache is *cleared*. There is no scheduler, no step and
no budget, so a reader who wants paged memory with prefix sharing only can stop here, and a scope
of a few blocks can be searched to its end.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from servespec import policy as choose
from servespec import pool as blocks
from servespec.chain import PUBLIC, Chain, Namespace, Tokens, keys
from servespec.config import blocks_for, demand_size
from servespec.errors import ActionDisabled, require
from servespec.events import PoolEvent
from servespec.policy import Policy
from servespec.pool import Blocks, Pool
from servespec.rules import rule


@frozen
class Slot:
    """What is allocated: a text in a namespace, and the blocks that hold it, first to last. An idle
    slot has neither."""

    text: Tokens = ()
    table: Blocks = ()
    namespace: Namespace = PUBLIC


IDLE = Slot()


@frozen
class Cache:
    """State: a pool, and its slots."""

    pool: Pool
    slots: tuple[Slot, ...]


@frozen
class Allocate:
    text: Tokens
    namespace: Namespace = PUBLIC


@frozen
class Free:
    slot: int


@frozen
class Clear:
    pass


CacheAction = Allocate | Free | Clear


@frozen
class CacheTransition:
    state: Cache
    events: tuple[PoolEvent, ...] = ()


@frozen
class CacheMachine:
    """A cache of `num_blocks` blocks of `block_size` tokens with `num_slots` slots.

    Raises:
        ConfigError: naming the size that is out of range.
    """

    num_blocks: int
    block_size: int
    num_slots: int
    policy: Policy

    def __attrs_post_init__(self) -> None:
        least = {"num_blocks": self.policy.first_block + 1, "block_size": 1, "num_slots": 1}
        for name, value in least.items():
            demand_size(name, getattr(self, name), value)

    def initial(self) -> Cache:
        free = tuple(range(self.policy.first_block, self.num_blocks))
        return Cache(Pool((blocks.EMPTY,) * self.num_blocks, free), (IDLE,) * self.num_slots)

    def apply(self, state: Cache, action: CacheAction) -> CacheTransition:
        """One transition.

        Raises:
            ActionDisabled: the state does not offer this action; nothing happened.
        """
        match action:
            case Allocate():
                return allocate(self, state, action)
            case Free(slot):
                held = state.slots[slot] if 0 <= slot < self.num_slots else IDLE
                require(held != IDLE, "Free", f"slot {slot} is idle", "free an allocated slot")
                moved = blocks.release(state.pool, self.policy, held.table)
                return CacheTransition(Cache(moved.pool, _with(state.slots, slot, IDLE)))
            case Clear():
                moved = blocks.clear(state.pool, self.policy)
                return CacheTransition(Cache(moved.pool, state.slots), moved.events)
            case _:
                raise ActionDisabled("apply", f"{action!r} is no action", "give one of the three")

    def enabled(self, state: Cache, texts: tuple[Tokens, ...]) -> Iterator[CacheAction]:
        """Every enabled allocation of one of the texts, and every enabled free."""
        if IDLE in state.slots:
            for text in texts:
                if self.demand(state, Allocate(text)) <= len(state.pool.free):
                    yield Allocate(text)
        for slot, held in enumerate(state.slots):
            if held != IDLE:
                yield Free(slot)

    def keys(self, action: Allocate) -> tuple[Chain, ...]:
        """The keys of a text's full blocks; none where nothing is shared."""
        if not choose.shares(self.policy):
            return ()
        return keys(action.namespace, action.text, self.block_size)

    def hits(self, state: Cache, action: Allocate) -> Blocks:
        """The blocks that an allocation would share."""
        known = self.keys(action)
        return blocks.match(state.pool, self.policy, known, len(action.text), self.block_size)

    def demand(self, state: Cache, action: Allocate) -> int:
        """The free blocks that an allocation would use up."""
        hits = self.hits(state, action)
        return blocks.demand(state.pool, 0, hits, len(action.text), self.block_size)


@rule("C", engine="any block manager; the article's BlockPool.allocate")
def allocate(machine: CacheMachine, state: Cache, action: Allocate) -> CacheTransition:
    """A text goes into the lowest idle slot: its longest cached prefix is shared, the rest is
    taken, and its full blocks are published at once."""
    require(bool(action.text), "Allocate", "the text is empty", "give at least one token")
    require(IDLE in state.slots, "Allocate", "no slot is idle", "free one first")
    need, free = machine.demand(state, action), len(state.pool.free)
    require(need <= free, "Allocate", f"{need} blocks of {free} free ones", "free a slot first")
    hits = machine.hits(state, action)
    shared = blocks.acquire(state.pool, hits)
    count = blocks_for(len(action.text), machine.block_size) - len(hits)
    taken = blocks.extend(shared.pool, count)
    known = machine.keys(action)
    table = hits + taken.blocks
    told = blocks.publish(taken.pool, table[len(hits) : len(known)], known[len(hits) :])
    held = Slot(action.text, table, action.namespace)
    slots = _with(state.slots, state.slots.index(IDLE), held)
    return CacheTransition(Cache(told.pool, slots), taken.events + told.events)


def _with(slots: tuple[Slot, ...], slot: int, held: Slot) -> tuple[Slot, ...]:
    return (*slots[:slot], held, *slots[slot + 1 :])
