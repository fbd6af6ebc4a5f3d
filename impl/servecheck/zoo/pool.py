"""Faults of the pool: reference counts, and what is handed out."""

from __future__ import annotations

from collections.abc import Sequence

from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.log import Entry
from servecheck.engines.fast.passes import Pass
from servecheck.engines.fast.plan import FastPlan, FastRequest
from servecheck.engines.fast.pool import FastPool
from servecheck.zoo.entry import fault
from servespec import policy as choose
from servespec.config import Config
from servespec.events import Reason
from servespec.policy import Policy


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


@fault("pin-set-mismatch", expects="OWN-1", needs="an admission refused though it has hits")
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

    def __init__(self, engine: FastEngine, plan: FastPlan) -> None:
        super().__init__(engine, plan)
        self.so_far: tuple[int, ...] = ()

    def book(self, request: FastRequest, stop: int, taken: tuple[int, ...], admitted: bool) -> None:
        self.so_far += taken
        super().book(request, stop, self.so_far, admitted)
