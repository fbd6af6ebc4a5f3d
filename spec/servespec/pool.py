"""The pool: blocks with reference counts, a free queue, an index of what can be shared.

Theory of operation. A block is either held, by as many block tables as its reference count
says, or it stands in the free queue, whose head is used next. A full block may carry a *key*
(`servespec.chain`): then the index finds it, held or free. Freeing a block leaves its key on it;
only taking it from the queue for new content removes the key. So the free queue *is* the cache,
in order of eviction.

The verbs are `match`, `acquire`, `extend`, `publish`, `release` and `clear`; each takes a pool
and returns a new one. `servespec.cache` is the pool as a machine of its own, block tables in
slots moved by these verbs; the scheduler is built over the same verbs.

Content is a ghost: each slot remembers what was written into it, as a chain of single tokens
through the slots *as they were read*. No verb looks at it. It makes wrong output visible as a
property (CON-1) instead of a symptom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import field, frozen

from servespec.chain import Chain, Namespace, Token, link
from servespec.config import Config, blocks_for, check
from servespec.errors import require
from servespec.events import BlockRemoved, BlockStored, CacheCleared, PoolEvent
from servespec.policy import Policy, copy_found, goes_to_head, hit_limit, release_walk
from servespec.rules import rule

Blocks = tuple[int, ...]


@frozen
class Block:
    """One physical block.

    `ref_count` tables hold it. `key` is its identity when it can be shared. `content` (ghost)
    has one entry for each written slot, in order; None is a slot that was never written.
    """

    ref_count: int = 0
    key: Chain | None = None
    content: tuple[Chain | None, ...] = field(default=(), repr=False)


EMPTY = Block()


@frozen
class Index:
    """Key → the blocks that carry it, oldest first. A value: changed copies are new objects."""

    copies: Mapping[Chain, Blocks] = field(factory=dict)

    def __hash__(self) -> int:
        return hash(frozenset(self.copies.items()))

    def with_copies(self, key: Chain, blocks: Blocks) -> Index:
        """The index in which exactly `blocks` answer to `key`."""
        changed = {**self.copies, key: blocks}
        if not blocks:
            del changed[key]
        return Index(changed)


@frozen
class Pool:
    blocks: tuple[Block, ...]
    free: Blocks
    """The free queue, head first."""
    index: Index = field(factory=Index)


@frozen
class Moved:
    """A verb's answer: the pool afterwards, the blocks it handed out, what happened."""

    pool: Pool
    blocks: Blocks = ()
    events: tuple[PoolEvent, ...] = ()


@rule("1", engine="BlockPool.__init__")
def initial(config: Config, policy: Policy) -> Pool:
    """All blocks are free, unhashed and in order of their numbers; where a null block is kept,
    block 0 is never free and never handed out."""
    check(config, policy)
    free = tuple(range(policy.first_block, config.num_blocks))
    return Pool((EMPTY,) * config.num_blocks, free)


@rule("11", engine="KVCacheManager.get_computed_blocks, BlockPool.get_cached_block")
def match(
    pool: Pool, policy: Policy, keys: Sequence[Chain], length: int, block_size: int
) -> Blocks:
    """A look-up walks the keys of a text from its start while the index knows them, at most as
    far as the hit cap, and takes the oldest copy of each."""
    hits: list[int] = []
    for key in keys[: hit_limit(policy, length, block_size)]:
        copies = pool.index.copies.get(key)
        if copies is None:
            break
        hits.append(copy_found(policy, copies))
    return tuple(hits)


def idle(pool: Pool, blocks: Sequence[int]) -> int:
    """How many of the blocks no table holds."""
    return sum(pool.blocks[b].ref_count == 0 for b in blocks)


def missing(have: int, slots: int, block_size: int) -> int:
    """Blocks to take so that a table of `have` blocks reaches `slots` token slots."""
    return max(blocks_for(slots, block_size) - have, 0)


@rule("12", engine="KVCacheManager.allocate_slots")
def demand(pool: Pool, have: int, hits: Sequence[int], slots: int, block_size: int) -> int:
    """What reaching `slots` token slots costs in free blocks: those that a table of `have` blocks
    and the hits do not cover, and each hit that would leave the free queue."""
    return missing(have + len(hits), slots, block_size) + idle(pool, hits)


@rule("7", engine="BlockPool.touch")
def acquire(pool: Pool, hits: Sequence[int]) -> Moved:
    """A hit block gets one more reference; one that nobody held leaves the free queue from
    wherever it stands."""
    blocks = list(pool.blocks)
    for b in hits:
        block = blocks[b]
        require(block.key is not None, "acquire", f"block {b} has no key", "acquire what was found")
        blocks[b] = Block(block.ref_count + 1, block.key, block.content)
    free = tuple(b for b in pool.free if blocks[b].ref_count == 0)
    return Moved(Pool(tuple(blocks), free, pool.index), tuple(hits))


@rule("5", "6", engine="BlockPool.get_new_blocks, BlockPool._maybe_evict_cached_block")
def extend(pool: Pool, count: int) -> Moved:
    """Blocks are taken from the head of the free queue. One that still has a key is evicted: it
    leaves the index, and says so, even if another copy of the key stays."""
    require(
        0 <= count <= len(pool.free),
        "extend",
        f"{count} blocks of {len(pool.free)} free ones",
        "ask `demand` first",
    )
    taken, blocks, index = pool.free[:count], list(pool.blocks), pool.index
    events: list[PoolEvent] = []
    for b in taken:
        key = blocks[b].key
        if key is not None:
            index = index.with_copies(key, tuple(c for c in index.copies[key] if c != b))
            events.append(BlockRemoved(b, key))
        blocks[b] = Block(ref_count=1)
    return Moved(Pool(tuple(blocks), pool.free[count:], index), taken, tuple(events))


@rule("10", engine="BlockPool.cache_full_blocks")
def publish(pool: Pool, blocks: Sequence[int], keys: Sequence[Chain]) -> Moved:
    """Publishing gives full blocks their keys and makes them findable. A copy that exists is not
    replaced and not shared: the new block stands behind it in the index."""
    changed, index = list(pool.blocks), pool.index
    events: list[PoolEvent] = []
    for b, key in zip(blocks, keys, strict=True):
        require(
            changed[b].ref_count > 0 and changed[b].key is None,
            "publish",
            f"block {b} is free or published",
            "publish each held block once",
        )
        changed[b] = Block(changed[b].ref_count, key, changed[b].content)
        index = index.with_copies(key, (*index.copies.get(key, ()), b))
        events.append(BlockStored(b, key, key.parent))
    return Moved(Pool(tuple(changed), pool.free, index), events=tuple(events))


@rule("8", engine="BlockPool.free_blocks")
def release(pool: Pool, policy: Policy, table: Sequence[int]) -> Moved:
    """A table is let go from its last block to its first. A block that nobody holds any more goes
    to the tail of the free queue if it has a key, and before its head if it has none; those of
    one table stand in the order of the walk."""
    blocks = list(pool.blocks)
    head: list[int] = []
    tail: list[int] = []
    for b in release_walk(policy, table):
        require(
            blocks[b].ref_count > 0, "release", f"block {b} is free", "release what a table holds"
        )
        block = Block(blocks[b].ref_count - 1, blocks[b].key, blocks[b].content)
        if block.ref_count == 0:
            (head if goes_to_head(policy, block.key is not None) else tail).append(b)
            block = block if block.key is not None else EMPTY
        blocks[b] = block
    return Moved(Pool(tuple(blocks), (*head, *pool.free, *tail), pool.index))


@rule("9", engine="BlockPool.reset_prefix_cache")
def clear(pool: Pool, policy: Policy) -> Moved:
    """Clearing the cache forgets every key; the free queue keeps its order. It needs all blocks
    to be free."""
    usable = len(pool.blocks) - policy.first_block
    require(len(pool.free) == usable, "clear", "blocks are held", "release all tables first")
    cleared = Pool((EMPTY,) * len(pool.blocks), pool.free)
    return Moved(cleared, events=(CacheCleared(),))


def write(
    pool: Pool,
    block_size: int,
    table: Sequence[int],
    namespace: Namespace,
    start: int,
    tokens: Sequence[Token],
) -> Pool:
    """Ghost: a forward pass writes `tokens` at positions `start` … through a table.

    A slot's value is (value of the slot before it as the table reads it, or the namespace;
    token). Behind a slot that nobody wrote, or that another namespace's text was written to, it is
    worth nothing: None. A free block without a key keeps nothing: nobody can read it.
    """
    if not tokens:
        return pool
    blocks = list(pool.blocks)
    first, last = start // block_size, blocks_for(start + len(tokens), block_size)
    content = {b: list(blocks[b].content) for b in table[first:last]}
    value = read(pool, block_size, table, start - 1) if start else None
    if value is not None and value.namespace != namespace:
        value = None
    for position, token in enumerate(tokens, start):
        slots, at = content[table[position // block_size]], position % block_size
        slots.extend([None] * (at + 1 - len(slots)))
        garbage = position > 0 and value is None
        value = slots[at] = None if garbage else link(namespace, value, (token,))
    for b, slots in content.items():
        if blocks[b].ref_count > 0 or blocks[b].key is not None:
            blocks[b] = Block(blocks[b].ref_count, blocks[b].key, tuple(slots))
    return Pool(tuple(blocks), pool.free, pool.index)


def read(pool: Pool, block_size: int, table: Sequence[int], position: int) -> Chain | None:
    """Ghost: the value at a position, read through a table; None if never written."""
    slots = pool.blocks[table[position // block_size]].content
    at = position % block_size
    return slots[at] if at < len(slots) else None
