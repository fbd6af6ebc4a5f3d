"""Faults of the free queue and the index: what is evicted, in which order, and what is left."""

from __future__ import annotations

from collections.abc import Sequence

from servecheck.engines.fast.log import REMOVED, Entry
from servecheck.engines.fast.pool import FastPool
from servecheck.engines.fast.trie import Names, Trie
from servecheck.zoo.entry import fault
from servespec.config import Config
from servespec.policy import Policy, Sharing

# --- the index -------------------------------------------------------------------------------


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


@fault("stale-index-entry", expects="PUB-1", needs="a hit on an idle block")
class HitIsWiped(FastPool):
    """A hit on an idle block goes through the routine for new blocks, which takes its key away.

    Cached content is lost with its first use.
    """

    def acquire(self, hits: Sequence[int]) -> None:
        idle = [block for block in hits if not self.ref[block]]
        super().acquire(hits)
        self._evict(idle)


@fault(
    "stale-index-entry",
    expects="APPLY-1",
    needs="a request that ends",
    masked="a place without a block is no hit, and nobody counts places",
)
class WaysStay(Trie):
    """The way of a text that has gone is kept, with nothing on it.

    Links from block to block grow with every request that ever was, until memory is short.
    """

    def drop(self, names: Names) -> None:
        names.leaf, names.count = None, 0


# --- the free queue --------------------------------------------------------------------------


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
