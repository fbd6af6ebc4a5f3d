"""Faults of the pool: reference counts, the free queue, eviction."""

from __future__ import annotations

from collections.abc import Sequence

from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.log import REMOVED, Entry
from servecheck.engines.fast.passes import Pass
from servecheck.engines.fast.plan import FastRequest
from servecheck.engines.fast.pool import FastPool
from servecheck.engines.fast.trie import Names
from servecheck.zoo.entry import fault
from servespec import policy as choose
from servespec.config import Config
from servespec.events import Reason
from servespec.policy import Policy, Sharing


def hits_of(made: Pass, request: FastRequest) -> list[int]:
    """What an admission finds of a request's text."""
    e = made.e
    limit = choose.hit_limit(e.policy, len(request.text), e.size)
    return FastPool.match(e.pool, request.names, limit)


# --- references ------------------------------------------------------------------------------


@fault("protected-block-reclaimed", expects="OWN-1", needs="a hit on an idle block")
class HitStaysFree(FastPool):
    """A hit is left in the free queue.

    Content that a request reads is given to another one: wrong output, no error.
    """

    def acquire(self, hits: Sequence[int]) -> None:
        for block in hits:
            self.ref[block] += 1


@fault("pin-set-mismatch", expects="OWN-2", needs="a hit")
class LastHitNotHeld(FastPool):
    """Of the blocks of a hit all but the last one are held.

    The reference went to the parent of the node that matched; the block itself could be evicted.
    """

    def acquire(self, hits: Sequence[int]) -> None:
        super().acquire(hits[:-1])


@fault("pin-set-mismatch", expects="OWN-2", needs="a hit")
class HitsNotHeld(FastPool):
    """What was found is not held at all.

    The handle that was to be pinned had been moved on, up to the root, by the time it was stored.
    """

    def acquire(self, hits: Sequence[int]) -> None:
        pass


@fault("side-effect-in-query", expects="ATOM-1", needs="an admission refused for want of room")
class HeldBeforeRefused(Pass):
    """Hits are held before it is known whether the rest fits, and are kept when it does not.

    Capacity shrinks at every retry; requests that should fit are never admitted.
    """

    def admit(self, request: FastRequest, at: int) -> Reason | None:
        reason = super().admit(request, at)
        if reason is Reason.NO_ROOM:
            self.e.pool.acquire(hits_of(self, request))
        return reason


@fault("pin-set-mismatch", expects="ATOM-1", needs="an admission refused though it has hits")
class RefusedLetsGo(Pass):
    """A look-up that comes to nothing gives back references that it never took.

    Others' blocks lose a holder, and are free while they are read.
    """

    def admit(self, request: FastRequest, at: int) -> Reason | None:
        reason = super().admit(request, at)
        if reason is Reason.NO_ROOM:
            self.e.pool.release(hits_of(self, request))
        return reason


@fault("double-release", expects="OWN-1", needs="a shared block")
class QueuedAtEveryRelease(FastPool):
    """A block goes to the free queue at every release, whoever else holds it.

    It is handed out while others read it.
    """

    def release(self, table: Sequence[int]) -> None:
        walk = [*table[::-1]] if self.tail_first else [*table]
        for block in walk:
            self.ref[block] -= 1
        rest = [block for block in self.queue() if block not in walk]
        head = [b for b in walk if self.to_head and self.trie.carried[b] is None]
        self.refill([*head, *rest, *(b for b in walk if b not in head)])


@fault("off-by-one", expects="APPLY-1", needs="any request that leaves")
class CountMayNotBeZero(FastPool):
    """The check on reference counts forbids zero, which is where a release ends.

    The engine stops at the first request that ends.
    """

    def release(self, table: Sequence[int]) -> None:
        super().release(table)
        if any(self.ref[block] <= 0 for block in table):
            raise RuntimeError("a reference count must be positive")


@fault("pin-set-mismatch", expects="OWN-2", needs="two copies of a key")
class ReleasedByLookup(FastEngine):
    """What is let go is looked up anew, instead of read from the table.

    Where two blocks carry one key, another request's copy loses its holder.
    """

    def _let_go(self, request: FastRequest) -> None:
        found = self.pool.match(request.names, request.published)
        request.table[: len(found)] = found
        super()._let_go(request)


# --- eviction --------------------------------------------------------------------------------


@fault("stale-index-entry", expects="IDX-1", needs="an eviction")
class StaleIndex(FastPool):
    """The index entry of an evicted block stays.

    A later request hits a block that holds something else by now.
    """

    def _evict(self, blocks: list[int]) -> None:
        for block in blocks:
            run = self.trie.carried[block]
            if run is not None:
                self.log.append((REMOVED, [block], run.text, self.trie.places[block]))
                self.trie.carried[block] = None


@fault("stale-index-entry", expects="CON-3", needs="an eviction")
class EvictedKeepsItsName(FastPool):
    """A block that is taken anew still counts as computed.

    What was in it before is served for what should have been computed.
    """

    def _evict(self, blocks: list[int]) -> None:
        pass


@fault("stale-index-entry", expects="IDX-2", needs="two copies of a key, one of them evicted")
class CopyForgotten(FastPool):
    """One of two copies of a key goes, and the entry of the other with it.

    What is resident is not found any more; later its own eviction finds no entry.
    """

    def _evict(self, blocks: list[int]) -> None:
        for block in blocks:
            run, place = self.trie.carried[block], self.trie.places[block]
            if run is not None:
                self.trie.carried[block] = None
                self.log.append((REMOVED, [block], run.text, place))
                run.blocks[place - run.start] = -1
                run.others = None


@fault("stale-index-entry", expects="IDX-2", needs="a hit on an idle block")
class HitIsWiped(FastPool):
    """A hit on an idle block goes through the routine for new blocks, which takes its key away.

    Cached content is lost with its first use.
    """

    def acquire(self, hits: Sequence[int]) -> None:
        idle = [block for block in hits if not self.ref[block]]
        super().acquire(hits)
        self._evict(idle)


@fault("cache-structure-order", expects="LRU-3", needs="a table of two blocks")
class ParentsFirst(FastPool):
    """Tables are let go from the other end, so parents are evicted before their children.

    Children stay behind a hole, where nobody finds them.
    """

    def __init__(self, config: Config, policy: Policy, log: list[Entry]) -> None:
        super().__init__(config, policy, log)
        self.tail_first = not self.tail_first


@fault("policy-quality", expects="LRU-3", needs="idle blocks without a key go to the head")
class UncachedAtTheTail(FastPool):
    """Blocks without a key are queued behind cached ones.

    Partial last blocks push useful content to the end where blocks are taken.
    """

    def __init__(self, config: Config, policy: Policy, log: list[Entry]) -> None:
        super().__init__(config, policy, log)
        self.to_head = False


@fault("policy-quality", expects="LRU-3", needs="sharing off, un-hashed blocks to the head")
class UncachedAtTheTailWithoutCache(FastPool):
    """With the cache off, blocks are queued at the other end than with it on.

    A short cut for that case had its own order.
    """

    def __init__(self, config: Config, policy: Policy, log: list[Entry]) -> None:
        super().__init__(config, policy, log)
        self.to_head = self.to_head and policy.sharing is not Sharing.OFF


@fault("policy-quality", expects="LRU-3", needs="a block with a key is let go")
class NewestIsOldest(FastPool):
    """What has just become idle counts as least recently used.

    The time of its last use was not set: the newest entry is evicted first.
    """

    def release(self, table: Sequence[int]) -> None:
        super().release(table)
        named = [b for b in self.queue() if b in table and self.trie.carried[b] is not None]
        rest = [block for block in self.queue() if block not in named]
        self.refill([*named, *rest])


# --- what is handed out ----------------------------------------------------------------------


@fault("over-conservative-supply", expects="APPLY-1", needs="a scattered free queue")
class NeighboursOnly(FastPool):
    """Only blocks with consecutive numbers are handed out together.

    "No slot found" with half of the pool free.
    """

    def extend(self, count: int) -> list[int]:
        free = set(self.queue())
        if not any(free.issuperset(range(b, b + count)) for b in free or {0}):
            raise RuntimeError(f"no {count} blocks stand side by side")
        return super().extend(count)


@fault("over-conservative-supply", expects="APPLY-1", needs="a pool used to its last block")
class LastBlockIsAnError(FastPool):
    """Nothing left counts as failure, although everybody has what it needs.

    Out of memory is reported with all requests able to go on.
    """

    def extend(self, count: int) -> list[int]:
        taken = super().extend(count)
        if count and not self.free:
            raise RuntimeError("out of memory")
        return taken


@fault("protected-block-reclaimed", expects="OWN-1", needs="a null block")
class NullBlockHandedOut(FastPool):
    """The block that stands for "nothing here" is in the free queue.

    Whoever gets it is skipped by every kernel.
    """

    def __init__(self, config: Config, policy: Policy, log: list[Entry]) -> None:
        super().__init__(config, policy, log)
        self.refill(range(config.num_blocks))


@fault("unit-or-rounding-mismatch", expects="TAB-1", needs="two blocks taken at once")
class BlocksForTokens(FastPool):
    """A number of blocks is given where a number of tokens is asked for.

    Too little is freed, and the request writes beyond what it has got.
    """

    def __init__(self, config: Config, policy: Policy, log: list[Entry]) -> None:
        super().__init__(config, policy, log)
        self.size = config.block_size

    def extend(self, count: int) -> list[int]:
        return super().extend(-(-count // self.size))


@fault("mirror-desync", expects="PLAN-2", needs="two requests take blocks in one pass")
class NewBlocksNotDrained(Pass):
    """The list of blocks taken in this pass is never emptied, so each request tells all before it.

    Lists grow, and workers clear blocks that are somebody else's.
    """

    def book(self, request: FastRequest, stop: int, taken: tuple[int, ...], admitted: bool) -> None:
        before = [entry.new_blocks for entry in self.plan.entries]
        earlier = tuple(b for e in self.plan.entries[-1:] for b in e.request.table[-before[-1] :])
        super().book(request, stop, earlier + taken if before and before[-1] else taken, admitted)


# --- look-ups that outlive what they found -----------------------------------------------------


@fault("plan-vs-execution-demand", expects="CON-2", needs="a look-up repeated after a refusal")
class StaleHits(FastPool):
    """What an admission found is remembered until it succeeds, and used again at the next try.

    In between the blocks were evicted: the engine dies, or serves what is not there.
    """

    def __init__(self, config: Config, policy: Policy, log: list[Entry]) -> None:
        super().__init__(config, policy, log)
        self.found: dict[Names, list[int]] = {}

    def match(self, names: Names, limit: int) -> list[int]:
        if names not in self.found:
            self.found[names] = super().match(names, limit)
        return self.found[names]

    def acquire(self, hits: Sequence[int]) -> None:
        super().acquire(hits)
        self.found = {names: found for names, found in self.found.items() if found is not hits}


class _FoundBefore(FastPool):
    found: dict[Names, list[int]] | None = None

    def match(self, names: Names, limit: int) -> list[int]:
        found = super().match(names, limit)
        return found if self.found is None else self.found.get(names, found)


@fault(
    "plan-vs-execution-demand",
    expects="CON-2",
    needs="two admissions in a pass, the second with idle hits",
    beside=_FoundBefore,
)
class AllLookedUpFirst(Pass):
    """All that wait are looked up first, and admitted afterwards, with nothing held in between.

    The blocks of the first admission are taken from what the second was promised.
    """

    def admit_all(self) -> None:
        pool = self.e.pool
        if isinstance(pool, _FoundBefore):
            pool.found = {r.names: hits_of(self, r) for r in self.e.waiting}
            super().admit_all()
            pool.found = None


@fault("plan-vs-execution-demand", expects="DEM-1", needs="idle hits and a pool nearly full")
class IdleHitsCostNothing(FastPool):
    """Idle hits are counted as free blocks, and as found too.

    The check passes, and the pool has fewer blocks than it said.
    """

    def idle(self, hits: Sequence[int]) -> int:
        return 0


@fault("over-conservative-supply", expects="WRK-1", needs="hits held by others, a full pool")
class SharedHitsCost(FastPool):
    """Blocks that others hold already are counted as if they were to be taken.

    Requests wait for room that they do not need.
    """

    def idle(self, hits: Sequence[int]) -> int:
        return len(hits)
