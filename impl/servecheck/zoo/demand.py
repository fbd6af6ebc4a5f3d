"""Faults of demand: what an admission counted on when it looked, and what it found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from servecheck.engines.fast.log import Entry
from servecheck.engines.fast.passes import Pass
from servecheck.engines.fast.pool import FastPool
from servecheck.engines.fast.trie import Names
from servecheck.zoo.entry import fault
from servecheck.zoo.pool import hits_of
from servespec.config import Config
from servespec.policy import Policy


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


@fault("plan-vs-execution-demand", expects="ADM-1", needs="idle hits and a pool nearly full")
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


# --- what counts as free -----------------------------------------------------------------------


def _cached(pool: FastPool) -> Iterable[int]:
    return (block for block in pool.queue() if pool.trie.carried[block] is not None)


@fault("over-conservative-supply", expects="WRK-1", needs="a watermark, idle cached blocks")
class CachedCountsAsUsed(Pass):
    """The reserve that an admission must leave counts cached idle blocks as used.

    Once the cache has filled the pool nobody is admitted.
    """

    def promised(self) -> int:
        e = self.e
        held = sum(1 for _ in _cached(e.pool)) if e.running and e.config.watermark_blocks else 0
        return super().promised() + held


@fault("over-conservative-supply", expects="WRK-1", needs="an idle cached text of two blocks")
class OnlyLeavesAreFree(Pass):
    """Only cached blocks that nothing cached follows count as free.

    The pool seems full, although one eviction makes way for the next.
    """

    def promised(self) -> int:
        trie = self.e.pool.trie
        parents = {key.parent for key in trie.index() if key.parent is not None}
        inner = sum(trie.key(block) in parents for block in _cached(self.e.pool))
        return super().promised() + inner
