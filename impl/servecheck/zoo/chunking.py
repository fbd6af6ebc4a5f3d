"""Faults of prompts that are computed in chunks, and of budgets that know about hits."""

from __future__ import annotations

from attrs import evolve

from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.passes import Pass
from servecheck.engines.fast.plan import FastPlan, FastRequest
from servecheck.zoo.entry import fault
from servecheck.zoo.pool import hits_of
from servespec.config import Config
from servespec.events import Reason
from servespec.policy import Admission, Policy


@fault("budget-not-charged", expects="TOK-1", needs="a threshold for long prompts, company")
class ThresholdIgnored(Pass):
    """A long prompt takes all of the budget, whatever the threshold says.

    Others stand still while it is computed.
    """

    def __init__(self, engine: FastEngine, plan: FastPlan) -> None:
        super().__init__(engine, plan)
        self.threshold = 0


@fault("no-rollback-on-failure", expects="REQ-1", needs="a chunk for which nothing is left")
class RefusedChunkKeepsItsLength(Pass):
    """A chunk that cannot go on was set to the whole prompt before that was found out.

    The next step believes that all of it is computed.
    """

    def skip(self, request: FastRequest, reason: Reason) -> None:
        super().skip(request, reason)
        if request.table and request.computed < request.prompt:
            request.computed = request.prompt


@fault("mirror-desync", expects="REQ-1", needs="a prompt in two chunks")
class ProgressAtTheEndOnly(Pass):
    """How far a prompt has come is noted when all of it is done.

    Each chunk begins at the start again.
    """

    def book(self, request: FastRequest, stop: int, taken: tuple[int, ...], admitted: bool) -> None:
        start = request.computed
        super().book(request, stop, taken, admitted)
        if request.prefilling:
            request.computed = start


@fault("over-conservative-supply", expects="TOK-1", needs="a hit")
class HitsAreCharged(Pass):
    """The budget is charged for the whole prompt, hits included.

    Requests that are cached wait as if they had to be computed.
    """

    def admit(self, request: FastRequest, at: int) -> Reason | None:
        hits = hits_of(self, request)
        reason = super().admit(request, at)
        if reason is None:
            self.left = max(self.left - len(hits) * self.e.size, 0)
        return reason


@fault("plan-vs-execution-demand", expects="BUD-1", needs="a hit on a prompt in chunks")
class HitsAreCreditedTwice(Pass):
    """Hits are taken off what a chunk costs, although the chunk is as long as before.

    A pass has more tokens than its budget.
    """

    def admit(self, request: FastRequest, at: int) -> Reason | None:
        hits = hits_of(self, request)
        reason = super().admit(request, at)
        if reason is None:
            self.left += len(hits) * self.e.size
        return reason


@fault("in-flight-step-race", expects="PLAN-2", needs="a prompt in two chunks")
class ChunkSamples(Pass):
    """A token is sampled after every chunk, and written at the next position.

    That position belongs to the prompt.
    """

    def book(self, request: FastRequest, stop: int, taken: tuple[int, ...], admitted: bool) -> None:
        super().book(request, stop, taken, admitted)
        detail = self.plan.details[-1]
        if detail is not None:
            self.plan.yields[-1] = True
            self.plan.details[-1] = detail._replace(yields=True)


@fault(
    "publish-unstable-content", expects="PLAN-2", needs="drafts, and a budget that cuts them off"
)
class DraftsOnAChunk(Pass):
    """A step that stops before the end of the text carries drafts all the same.

    They are verified against positions that they were not made for.
    """

    def book(self, request: FastRequest, stop: int, taken: tuple[int, ...], admitted: bool) -> None:
        drafts = request.drafts
        super().book(request, stop, taken, admitted)
        detail = self.plan.details[-1]
        if drafts and detail is not None and not detail.drafts:
            self.plan.details[-1] = detail._replace(drafts=drafts[: stop - detail.start])


@fault("starvation-or-thrash-by-policy", expects="ADM-1", needs="a prompt in chunks, a tight pool")
class FirstChunkFits(FastEngine):
    """An admission asks for the blocks of its first chunk only.

    Several long prompts are admitted that together do not fit, and preempt each other.
    """

    def __init__(self, config: Config, policy: Policy, *, tells: bool = True) -> None:
        super().__init__(config, policy, tells=tells)
        self.policy = evolve(policy, admission=Admission.STEP)
