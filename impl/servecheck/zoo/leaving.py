"""Faults of leaving: aborts, discarded steps, and resets of the cache."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.log import CLEARED
from servecheck.engines.fast.plan import FastRequest
from servecheck.engines.fast.pool import FastPool
from servecheck.zoo.entry import fault
from servespec.chain import Tokens
from servespec.config import Config
from servespec.policy import Policy, Release, Reset

# --- aborts ------------------------------------------------------------------------------------


@fault("release-missing-on-exit-path", expects="OWN-2", needs="an abort of somebody who runs")
class AbortKeepsBlocks(FastEngine):
    """An abort forgets the request before its blocks are let go.

    The pool shrinks with every client that hangs up.
    """

    def abort(self, request_id: str) -> None:
        request = self.requests.get(request_id)
        if request is not None:
            request.table = []
        super().abort(request_id)


@fault("release-missing-on-exit-path", expects="END-1", needs="an abort of somebody who waits")
class AbortOfWaitingIgnored(FastEngine):
    """An abort looks for running requests only.

    Who waits stays in the queue, and is computed for nobody.
    """

    def abort(self, request_id: str) -> None:
        if all(r.id != request_id for r in self.waiting):
            super().abort(request_id)


@fault("wrong-target-of-abort", expects="END-1", needs="an id that begins another")
class AbortByPrefix(FastEngine):
    """An abort takes all whose ids begin with the one that is given.

    The abort of r1 ends r10 as well.
    """

    def abort(self, request_id: str) -> None:
        for other in [other for other in self.requests if other.startswith(request_id)]:
            super().abort(other)


@fault("wrong-target-of-abort", expects="END-1", needs="two that run")
class AbortHitsTheLast(FastEngine):
    """An abort ends the request that the loop looked at last.

    Somebody else's answer breaks off.
    """

    def abort(self, request_id: str) -> None:
        runs = any(r.id == request_id for r in self.running)
        super().abort(self.running[-1].id if runs else request_id)


@fault("release-missing-on-exit-path", expects="APPLY-1", needs="an abort of somebody who waits")
class AbortBeforeAllocation(FastEngine):
    """An abort reads tables that exist only after the first allocation.

    A client that hangs up early stops the engine.
    """

    def abort(self, request_id: str) -> None:
        request = self.requests.get(request_id)
        if request is not None and not request.table:
            raise KeyError(request_id)
        super().abort(request_id)


@fault("double-release", expects="APPLY-1", needs="an abort while a step is in flight")
class LateOutputReleases(FastEngine):
    """The output of somebody who was aborted in flight lets its table go a second time.

    Both ways out release.
    """

    def take_in(self, sampled: Sequence[Tokens], drafts: Sequence[Tokens] = ()) -> None:
        plan = self.in_flight[0] if self.in_flight else None
        super().take_in(sampled, drafts)
        for table in plan.gone.values() if plan is not None else ():
            self.pool.release(table)


@fault(
    "double-release",
    expects="APPLY-1",
    needs="a request that ends",
    masked="who lets a table go empties it",
)
class LetGoTwice(FastEngine):
    """Both the way out of a request and its end let its table go.

    A report in the log says that somebody was cleaned up who was clean already.
    """

    def _forget(self, request: FastRequest) -> None:
        self._let_go(request)
        super()._forget(request)


@fault("in-flight-step-race", expects="PLAN-2", needs="releases are deferred, an abort in flight")
class ReleasedUnderAStep(FastEngine):
    """Blocks are let go while a step in flight still writes to them.

    Whoever gets them next is overwritten.
    """

    def __init__(self, config: Config, policy: Policy, *, tells: bool = True) -> None:
        super().__init__(config, policy, tells=tells)
        self.policy = evolve(policy, release=Release.AT_ONCE)


@fault("in-flight-step-race", expects="APPLY-1", needs="a reset that preempts, in flight")
class StaleOutputAccepted(FastEngine):
    """The output of a step before a preemption is taken for that of the request as it waits.

    A token appears that was computed for an earlier text.
    """

    def take_in(self, sampled: Sequence[Tokens], drafts: Sequence[Tokens] = ()) -> None:
        plan = self.in_flight[0] if self.in_flight else None
        for request in [*plan.gone] if plan is not None else ():
            if self.requests.get(request.id) is request and plan is not None:
                del plan.gone[request]
        super().take_in(sampled, drafts)


# --- discarded steps ---------------------------------------------------------------------------


@fault("computed-counter-wrong", expects="REQ-1", needs="a discarded step")
class DiscardKeepsComputed(FastEngine):
    """A step that never ran stays in what counts as computed.

    Computed exceeds what there is, and positions are read that nobody wrote.
    """

    def discard(self) -> None:
        counts = {r: r.computed for r in self.running}
        super().discard()
        for request, computed in counts.items():
            request.computed = computed


@fault("publish-before-written", expects="PUB-1", needs="a discarded step that fills a block")
class DiscardPublishes(FastEngine):
    """A step that is dropped is let go by the way that stores its tokens.

    Blocks can be found that were never written.
    """

    def discard(self) -> None:
        for request in self.in_flight[-1].requests if self.in_flight else ():
            if self.shares and self.in_flight[-1].live(request):
                self._publish(request, request.computed)
        super().discard()


@fault("release-missing-on-exit-path", expects="OWN-2", needs="deferred releases, a discarded step")
class DeferredLostOnFailure(FastEngine):
    """Blocks whose release waits for a step are let go only if the step succeeds.

    Each failed step keeps them for ever.
    """

    def discard(self) -> None:
        if self.in_flight:
            self.in_flight[-1].deferred.clear()
        super().discard()


# --- resets ------------------------------------------------------------------------------------


@fault("frame-violation", expects="RST-1", needs="a reset while blocks are held")
class ResetWhileHeld(FastEngine):
    """A reset clears the index although blocks are in use.

    Tables and index are of two minds from then on.
    """

    def reset_cache(self, preempt_running: bool) -> None:
        self.pool.trie.clear()
        self.log.append((CLEARED,))


@fault("frame-violation", expects="RST-1", needs="a reset")
class ResetKeepsNames(FastPool):
    """A reset says that it has cleared the cache, and the index stays.

    New weights are asked with what the old ones computed.
    """

    def clear(self) -> None:
        self.log.append((CLEARED,))


@fault("no-rollback-on-failure", expects="RST-1", needs="a reset that is to preempt")
class ResetNeverPreempts(FastEngine):
    """A reset is refused while anything runs, though it was asked to preempt.

    There is a line in the log, and the caller goes on with the old cache.
    """

    def __init__(self, config: Config, policy: Policy, *, tells: bool = True) -> None:
        super().__init__(config, policy, tells=tells)
        self.policy = evolve(policy, reset=Reset.REFUSE_WHILE_HELD)


@fault("latched-or-ghost-state", expects="DEL-1", needs="a reset that preempts between steps")
class FreshTokenDropped(FastEngine):
    """A reset marks all that ran: "ignore your next output", though none was in flight.

    The first token after it is lost.
    """

    marked: frozenset[FastRequest] = frozenset()

    def reset_cache(self, preempt_running: bool) -> None:
        ran = frozenset(self.running)
        super().reset_cache(preempt_running)
        self.marked |= ran - frozenset(self.running)

    def take_in(self, sampled: Sequence[Tokens], drafts: Sequence[Tokens] = ()) -> None:
        plan = self.in_flight[0] if self.in_flight else None
        super().take_in(sampled, drafts)
        for request, tokens in zip(plan.requests, sampled, strict=True) if plan is not None else ():
            if tokens and request in self.marked:
                self.marked -= {request}
                del request.text[-len(tokens) :]
