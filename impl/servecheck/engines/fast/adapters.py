"""The fast engine as the levels of `servecheck.engines.protocol`: its pool alone, and the whole.

These are also the shortest examples of an adapter: what a real engine has to offer to be checked.
"""

from __future__ import annotations

from collections.abc import Sequence

from servecheck import __version__
from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.log import FINISHED, PREEMPTED, REFUSED, Entry
from servecheck.engines.fast.plan import FastRequest
from servecheck.engines.fast.pool import FastPool
from servecheck.engines.fast.trie import Names
from servecheck.engines.protocol import (
    Capabilities,
    Copies,
    Level,
    SeenEntry,
    SeenOutcome,
    SeenPlan,
    SeenPool,
    SeenRequest,
    SeenState,
)
from servespec.actions import Output, Submit
from servespec.chain import Namespace, Tokens
from servespec.config import Config
from servespec.events import Reason
from servespec.policy import Policy
from servespec.pool import Blocks


def see(pool: FastPool) -> SeenPool:
    """All that a pool holds."""
    index = tuple(Copies(key, copies) for key, copies in pool.trie.index().items())
    return SeenPool(tuple(pool.queue()), tuple(pool.ref), index)


class FastCache:
    """L1: the pool of the fast engine."""

    capabilities = Capabilities("fast", __version__, Level.POOL)

    def __init__(self, config: Config, policy: Policy) -> None:
        self.size = config.block_size
        self.log: list[Entry] = []
        self.pool = FastPool(config, policy, self.log)

    def match(self, namespace: Namespace, text: Tokens, limit: int) -> Blocks:
        names = self._names(namespace, text)
        hits = self.pool.match(names, limit)
        self.pool.trie.drop(names)
        return tuple(hits)

    def acquire(self, hits: Blocks) -> None:
        self.pool.acquire(hits)

    def extend(self, count: int) -> Blocks:
        return tuple(self.pool.extend(count))

    def publish(
        self, table: Blocks, namespace: Namespace, text: Tokens, start: int, stop: int
    ) -> None:
        names = self._names(namespace, text)
        self.pool.publish(table, names, start, stop)
        self.pool.trie.drop(names)

    def release(self, table: Blocks) -> None:
        self.pool.release(table)

    def clear(self) -> bool:
        whole = self.pool.free == len(self.pool.ref) - self.pool.first
        if whole:
            self.pool.clear()
        return whole

    def see_pool(self) -> SeenPool:
        self.log.clear()
        return see(self.pool)

    def _names(self, namespace: Namespace, text: Tokens) -> Names:
        names = Names()
        self.pool.trie.extend(names, namespace, list(text), self.size)
        return names


class FastLoop:
    """L3: the fast engine, whole."""

    capabilities = Capabilities("fast", __version__, Level.STATE)

    def __init__(self, config: Config, policy: Policy) -> None:
        self.engine = FastEngine(config, policy)

    def submit(self, request: Submit) -> bool:
        self.engine.submit(request)
        return request.id in self.engine.requests

    def schedule(self) -> SeenPlan:
        self.engine.log.clear()
        plan = self.engine.schedule()
        entries = (
            SeenEntry(
                e.request.id,
                e.start,
                e.stop - e.start,
                e.drafts,
                tuple(e.request.table[: e.blocks]),
            )
            for e in plan.entries
        )
        return SeenPlan(tuple(entries), tuple(map(str, self._told(PREEMPTED, 1))))

    def complete(self, outputs: Sequence[Output]) -> SeenOutcome:
        self.engine.log.clear()
        self.engine.complete(outputs)
        ended = zip(self._told(FINISHED, 1), self._told(FINISHED, 2), strict=True)
        return SeenOutcome(tuple((str(i), Reason(reason)) for i, reason in ended))

    def discard(self) -> None:
        self.engine.discard()

    def abort(self, request_id: str) -> bool:
        known = request_id in self.engine.requests
        self.engine.abort(request_id)
        return known

    def reset_cache(self, preempt_running: bool) -> bool:
        self.engine.log.clear()
        self.engine.reset_cache(preempt_running)
        return not self._told(REFUSED, 1)

    def see_state(self) -> SeenState:
        engine = self.engine
        engine.log.clear()
        return SeenState(
            see(engine.pool),
            tuple(_seen(r) for r in engine.running),
            tuple(_seen(r) for r in engine.waiting),
        )

    def _told(self, kind: str, at: int) -> list[object]:
        return [entry[at] for entry in self.engine.log if entry[0] == kind]


def _seen(r: FastRequest) -> SeenRequest:
    return SeenRequest(r.id, r.computed, len(r.text), tuple(r.table), r.drafts)
