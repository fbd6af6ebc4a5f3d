"""The fast pool: the verbs of `servespec.pool` on arrays and a linked list.

Theory of operation. The free queue is a doubly linked list threaded through two arrays, with the
number of blocks as its sentinel, so taking the head, leaving from the middle and going to either
end cost O(1). Reference counts are an array. Names and index are the tree of texts itself. Every
verb does work per block that it moves, and never looks at another one.

Order is the specification's, block for block; what happens is written to a log
(`servecheck.engines.fast.log`).
"""

from __future__ import annotations

from collections.abc import Sequence

from servecheck.engines.fast.log import CLEARED, Entry
from servecheck.engines.fast.trie import Names, Trie
from servespec.config import Config, check
from servespec.errors import ActionDisabled, require
from servespec.policy import FreeWalk, Lookup, Policy, Unhashed


class FastPool:
    """Blocks, the free queue and the index."""

    __slots__ = (
        "before",
        "first",
        "free",
        "log",
        "newest",
        "next",
        "ref",
        "tail_first",
        "to_head",
        "trie",
    )

    def __init__(self, config: Config, policy: Policy, log: list[Entry]) -> None:
        check(config, policy)
        self.first = policy.first_block
        self.ref = [0] * config.num_blocks
        self.trie = Trie(config.num_blocks)
        self.log = log
        self.newest = policy.lookup is Lookup.NEWEST
        self.tail_first = policy.free_walk is FreeWalk.TAIL_FIRST
        self.to_head = policy.unhashed is Unhashed.TO_HEAD
        self.next = [0] * (config.num_blocks + 1)
        self.before = [0] * (config.num_blocks + 1)
        self.refill(range(self.first, config.num_blocks))

    def refill(self, order: Sequence[int]) -> None:
        """Make the free queue exactly this, head first."""
        end = len(self.ref)
        last = end
        for block in order:
            self.next[last] = block
            self.before[block] = last
            last = block
        self.next[last] = end
        self.before[end] = last
        self.free = len(order)

    def queue(self) -> list[int]:
        """The free queue, head first."""
        found, end = [], len(self.ref)
        here = self.next[end]
        while here != end:
            found.append(here)
            here = self.next[here]
        return found

    def match(self, names: Names, limit: int) -> list[int]:
        """The blocks of the longest cached prefix of a text, at most `limit`."""
        return self.trie.match(names, limit, self.newest)

    def idle(self, hits: Sequence[int]) -> int:
        """How many of the blocks no table holds."""
        ref = self.ref
        return [ref[block] for block in hits].count(0)

    def acquire(self, hits: Sequence[int]) -> None:
        """One more reference for each; who was idle leaves the queue."""
        ref, following, before = self.ref, self.next, self.before
        for block in hits:
            if ref[block] == 0:
                p, n = before[block], following[block]
                following[p] = n
                before[n] = p
                self.free -= 1
            ref[block] += 1

    def extend(self, count: int) -> list[int]:
        """Take `count` blocks from the head of the queue; who has a name is evicted."""
        if count > self.free:
            what = f"{count} blocks of {self.free} free ones"
            raise ActionDisabled("extend", what, "ask for the demand first")
        end, following, ref, carried = len(self.ref), self.next, self.ref, self.trie.carried
        taken: list[int] = []
        here = following[end]
        for _ in range(count):
            taken.append(here)
            here = following[here]
        for block in taken:
            ref[block] = 1
        following[end] = here
        self.before[here] = end
        self.free -= count
        named = [block for block in taken if carried[block] is not None]
        if named:
            self._evict(named)
        return taken

    def _evict(self, blocks: list[int]) -> None:
        self.trie.evict(blocks, self.log)

    def publish(self, table: Sequence[int], names: Names, start: int, stop: int) -> None:
        """Blocks start … stop-1 of a table get their names and can be found."""
        carried, ref = self.trie.carried, self.ref
        blocks = tuple(table[start:stop])
        for block in blocks:
            if carried[block] is not None or not ref[block]:
                raise _misuse("publish", block, "free or published", "publish each block once")
        if blocks:
            self.trie.publish(blocks, names, start, self.log)

    def release(self, table: Sequence[int]) -> None:
        """Let a table go, in the order and to the ends that policy names."""
        ref, carried = self.ref, self.trie.carried
        walk = table[::-1] if self.tail_first else table
        for block in walk:
            count = ref[block] - 1
            if count < 0:
                raise _misuse("release", block, "free", "release what a table holds")
            ref[block] = count
        tail = [block for block in walk if not ref[block]]
        head: list[int] = []
        if self.to_head:
            head = [block for block in tail if carried[block] is None]
            if head:
                tail = [block for block in tail if carried[block] is not None]
        end, following, before = len(ref), self.next, self.before
        last = before[end]
        for block in tail:
            following[last] = block
            before[block] = last
            last = block
        following[last] = end
        before[end] = last
        first = following[end]
        for block in reversed(head):
            following[block] = first
            before[first] = block
            first = block
        following[end] = first
        before[first] = end
        self.free += len(head) + len(tail)

    def clear(self) -> None:
        """Forget every name; the queue keeps its order."""
        usable = len(self.ref) - self.first
        require(self.free == usable, "clear", "blocks are held", "release all tables first")
        self.trie.clear()
        self.log.append((CLEARED,))


def _misuse(verb: str, block: int, state: str, remedy: str) -> ActionDisabled:
    """An error that is made only when it is raised: this is on the way of every block."""
    return ActionDisabled(verb, f"block {block} is {state}", remedy)
