"""Faults of what is told: the engine is right, and says something else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from attrs import evolve

from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.log import ADMITTED, CLEARED, FINISHED, REFUSED, REMOVED
from servecheck.engines.fast.passes import Pass
from servecheck.engines.fast.plan import FastRequest
from servecheck.engines.fast.pool import FastPool
from servecheck.zoo.entry import fault
from servespec.actions import Submit
from servespec.chain import PUBLIC, Chain, Namespace, chain, link
from servespec.config import Config
from servespec.events import Admitted, BlockRemoved, BlockStored, Event, Finished
from servespec.policy import Policy


def _renamed(told: Iterable[Event], name: Callable[[Chain], Chain]) -> tuple[Event, ...]:
    """Events whose keys have other names."""
    found: list[Event] = []
    for event in told:
        if isinstance(event, BlockStored):
            parent = None if event.parent is None else name(event.parent)
            event = BlockStored(event.block, name(event.key), parent)
        elif isinstance(event, BlockRemoved):
            event = BlockRemoved(event.block, name(event.key))
        found.append(event)
    return tuple(found)


# --- keys --------------------------------------------------------------------------------------


@fault("identity-collision", expects="EVT-1", needs="equal blocks at two places")
class ToldWithoutParent(FastEngine):
    """Events name a block by its own tokens.

    Equal blocks at different places have one name, and routers count on what is not there.
    """

    def events(self) -> tuple[Event, ...]:
        return _renamed(super().events(), lambda key: link(key.namespace, None, key.tokens))


@fault("namespace-omitted", expects="EVT-1", needs="equal texts in two namespaces")
class ToldWithoutNamespace(FastEngine):
    """The cache knows namespaces, and events leave them out.

    Whoever listens takes one tenant's blocks for another's.
    """

    def events(self) -> tuple[Event, ...]:
        return _renamed(super().events(), lambda key: chain(PUBLIC, key.runs()))


@fault("namespace-omitted", expects="EVT-1", needs="an adapter")
class ToldInAnotherOrder(FastEngine):
    """Events put adapter and salt together in another order than look-ups do.

    Who has both under one name is taken for somebody else.
    """

    def events(self) -> tuple[Event, ...]:
        def swapped(key: Chain) -> Chain:
            mine = key.namespace
            both = f"{mine.adapter or ''}{mine.salt or ''}" or None
            return chain(Namespace(both), key.runs())

        return _renamed(super().events(), swapped)


@fault("stale-index-entry", expects="EVT-1", needs="a second block of a text")
class ParentOfTheNeighbour(FastEngine):
    """The parent that is told is read from the block before it in the pool.

    That one may be the null block, or have no name at all.
    """

    def events(self) -> tuple[Event, ...]:
        trie = self.pool.trie
        return tuple(
            evolve(event, parent=trie.key(event.block - 1) if event.block else None)
            if isinstance(event, BlockStored) and event.parent is not None
            else event
            for event in super().events()
        )


# --- what is not told, or twice ------------------------------------------------------------------


@fault("event-producer-unfaithful", expects="EVT-1", needs="an eviction")
class EvictionNotTold(FastPool):
    """A block is evicted, and nobody is told.

    Requests are sent to where their prefix was.
    """

    def _evict(self, blocks: list[int]) -> None:
        self.trie.evict(blocks, [])


@fault("event-producer-unfaithful", expects="EVT-1", needs="a hit on an idle block")
class TouchToldAsRemoved(FastPool):
    """What is hit is told as removed, and not as stored again.

    Whoever listens forgets what is there.
    """

    def acquire(self, hits: Sequence[int]) -> None:
        for block in hits:
            run = self.trie.carried[block]
            if run is not None and not self.ref[block]:
                self.log.append((REMOVED, [block], run.text, self.trie.places[block]))
        super().acquire(hits)


@fault("event-consumer-fold", expects="EVT-1", needs="a reset")
class ClearingNotTold(FastPool):
    """A reset clears the cache, and nobody is told.

    Whoever listens goes on with what was there before.
    """

    def clear(self) -> None:
        super().clear()
        self.log.remove((CLEARED,))


@fault("mirror-desync", expects="END-1", needs="an abort")
class AbortNotTold(FastEngine):
    """What is told comes with outputs, and an abort has none.

    Gauges show requests that left long ago.
    """

    def abort(self, request_id: str) -> None:
        super().abort(request_id)
        if self.log and self.log[-1][0] == FINISHED:
            self.log.pop()


@fault("release-missing-on-exit-path", expects="RST-1", needs="a request that is refused")
class RefusalNotTold(FastEngine):
    """A request that can never fit is dropped, and nobody is told.

    The client waits for ever.
    """

    def submit(self, submit: Submit) -> None:
        super().submit(submit)
        if self.log and self.log[-1][0] == REFUSED:
            self.log.pop()


# --- counters ----------------------------------------------------------------------------------


@fault("counter-double-count", expects="PLAN-2", needs="a prompt in two chunks")
class ChunksToldAsHits(Pass):
    """What earlier chunks have computed is told as found in the cache.

    The hit rate of a cold cache is high.
    """

    def book(self, request: FastRequest, stop: int, taken: tuple[int, ...], admitted: bool) -> None:
        if not admitted and request.prefilling:
            table = tuple(request.table)
            self.e.log.append((ADMITTED, request.id, request.computed, table))
        super().book(request, stop, taken, admitted)


@fault("counter-double-count", expects="PLAN-2", needs="somebody preempted who is found again")
class HitsToldTwice(FastEngine):
    """The hits of a request that comes back are added to those of its first admission.

    More of a prompt is cached than it has tokens.
    """

    def __init__(self, config: Config, policy: Policy, *, tells: bool = True) -> None:
        super().__init__(config, policy, tells=tells)
        self.earlier: dict[str, int] = {}

    def events(self) -> tuple[Event, ...]:
        told = super().events()
        found: list[Event] = []
        for event in told:
            if isinstance(event, Admitted):
                before = self.earlier.get(event.id, 0)
                self.earlier[event.id] = before + event.hit_tokens
                event = evolve(event, hit_tokens=before + event.hit_tokens)
            elif isinstance(event, Finished):
                self.earlier.pop(event.id, None)
            found.append(event)
        return tuple(found)
