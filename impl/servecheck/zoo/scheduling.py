"""Faults of the scheduler: who is admitted, with how many tokens, in which order."""

from __future__ import annotations

from attrs import evolve

from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.passes import Pass
from servecheck.engines.fast.plan import FastPlan, FastRequest
from servecheck.zoo.entry import fault
from servespec import policy as choose
from servespec.actions import Submit
from servespec.config import Config
from servespec.events import Reason
from servespec.machine import Machine
from servespec.policy import Impossible, Order, Policy

# --- the budget and the seats ------------------------------------------------------------------


@fault("budget-not-charged", expects="WRK-1", needs="a budget that the first request uses up")
class ZeroLengthChunk(Pass):
    """With no tokens left, the next request is still admitted, with a chunk of length zero.

    Two requests are "the one in chunks", and the second overwrites the first.
    """

    def shut(self) -> Reason | None:
        reason = super().shut()
        full = len(self.e.running) >= self.e.config.max_num_seqs
        return None if reason is Reason.NO_TOKENS and not full else reason


@fault("budget-not-charged", expects="BUD-1", needs="two admissions in a pass")
class AdmissionsNotCharged(Pass):
    """The tokens of admissions are not added up.

    A pass has more tokens than its budget, and the forward pass runs out of memory.
    """

    def admit(self, request: FastRequest, at: int) -> Reason | None:
        left = self.left
        reason = super().admit(request, at)
        self.left = left
        return reason


@fault("budget-not-charged", expects="BUD-1", needs="a prompt longer than what is left")
class AdmissionNotClipped(Pass):
    """An admission gets what its text needs, not what others have left of the budget.

    A pass has more tokens than its budget.
    """

    def admit(self, request: FastRequest, at: int) -> Reason | None:
        left, budget = self.left, self.e.config.max_num_batched_tokens
        self.left = budget
        reason = super().admit(request, at)
        self.left += left - budget
        return reason


@fault("budget-not-charged", expects="BUD-1", needs="one seat left, two that wait")
class SeatsAskedOnce(Pass):
    """Whether a seat is free is asked at the start of the admissions, and not for each.

    More requests run than may.
    """

    def shut(self) -> Reason | None:
        reason = super().shut()
        free = self.running_at_start < self.e.config.max_num_seqs
        return None if reason is Reason.NO_SEATS and free else reason


@fault("budget-not-charged", expects="BUD-1", needs="admissions go on after a preemption")
class PreemptedSubtractedTwice(Pass):
    """Who was preempted in this pass is taken off the running ones once more.

    As many requests too many are admitted.
    """

    def shut(self) -> Reason | None:
        reason = super().shut()
        seats = self.e.config.max_num_seqs + self.preempted
        return None if reason is Reason.NO_SEATS and len(self.e.running) < seats else reason


@fault("plan-vs-execution-demand", expects="APPLY-1", needs="somebody preempted, a full pool")
class ResumedUnasked(Pass):
    """Who was preempted goes on without a look at the free blocks.

    The pool runs out in the middle of the pass.
    """

    def admit(self, request: FastRequest, at: int) -> Reason | None:
        pool = self.e.pool
        if len(request.text) == request.prompt:
            return super().admit(request, at)
        many = len(pool.ref) + self.e.config.watermark_blocks
        pool.free += many
        reason = super().admit(request, at)
        pool.free -= many
        return reason


# --- who is next -------------------------------------------------------------------------------


@fault("starvation-or-thrash-by-policy", expects="WRK-1", needs="somebody runs, somebody waits")
class StarvedByDecodes(Pass):
    """Nobody is admitted while anybody runs.

    New requests wait until all others are done.
    """

    def shut(self) -> Reason | None:
        return Reason.BATCH if self.running_at_start else super().shut()


@fault("starvation-or-thrash-by-policy", expects="ADM-1", needs="no chunks, a long prompt first")
class LongPromptOvertaken(Pass):
    """A prompt that is longer than the rest of the budget is passed over, and the next one tried.

    Short prompts keep coming, and the long one waits for ever.
    """

    def admit(self, request: FastRequest, at: int) -> Reason | None:
        reason = super().admit(request, at)
        waiting = self.e.waiting
        if reason is Reason.NO_CHUNKS and at + 1 < len(waiting):
            return self.admit(waiting[at + 1], at + 1)
        return reason


@fault("mirror-desync", expects="QUE-1", needs="refused ones are passed over, two of them")
class PassedOverReversed(Pass):
    """Who was passed over is put back in reversed order.

    The order of the queue turns round with every step.
    """

    def admit_all(self) -> None:
        super().admit_all()
        if choose.passes_over(self.e.policy):
            self.e.waiting.reverse()


@fault("concurrency-primitive", expects="APPLY-1", needs="priority, equal in all but the id")
class TieIsAnError(FastEngine):
    """Two requests of one priority and one arrival are compared by something without an order.

    The engine dies when they meet in the queue.
    """

    def _wait(self, request: FastRequest, preempted: bool) -> None:
        mine = request.priority, request.arrival
        if self.policy.order is Order.PRIORITY and any(
            (other.priority, other.arrival) == mine for other in self.waiting
        ):
            raise TypeError("requests have no order")
        super()._wait(request, preempted)


class _Wakes(FastEngine):
    asleep = False

    def _let_go(self, request: FastRequest) -> None:
        super()._let_go(request)
        if self.in_flight:
            self.asleep = False


@fault(
    "missed-wake-up",
    expects="WRK-1",
    needs="an admission refused, then an abort between steps",
    beside=_Wakes,
)
class OnlyAFinishWakes(Pass):
    """After a refusal the queue is looked at again only when a step has ended somebody.

    Room that an abort has made is seen by nobody.
    """

    def shut(self) -> Reason | None:
        e = self.e
        asleep = isinstance(e, _Wakes) and e.asleep
        return Reason.NO_ROOM if asleep else super().shut()

    def admit(self, request: FastRequest, at: int) -> Reason | None:
        reason = super().admit(request, at)
        if isinstance(self.e, _Wakes) and reason is Reason.NO_ROOM:
            self.e.asleep = True
        return reason


# --- what is accepted, and when it ends ----------------------------------------------------------


@fault("impossible-request-accepted", expects="RST-1", needs="what can never fit is refused")
class ImpossibleAccepted(FastEngine):
    """A request that can never fit is accepted.

    It waits for ever, or is preempted by itself again and again.
    """

    def __init__(self, config: Config, policy: Policy, *, tells: bool = True) -> None:
        super().__init__(config, policy, tells=tells)
        self.machine = Machine(config, evolve(policy, impossible=Impossible.QUEUE))


@fault("off-by-one", expects="END-1", needs="a request that ends by its length")
class OneTokenTooMany(FastEngine):
    """The limit is tested before the token is counted.

    Answers have one token more than was asked for.
    """

    def submit(self, submit: Submit) -> None:
        super().submit(submit)
        if submit.id in self.requests:
            self.requests[submit.id].limit += 1


# --- what one request does to others -------------------------------------------------------------


@fault("frame-violation", expects="WRK-1", needs="an abort of somebody who waits")
class StopFlagForAll(FastEngine):
    """An abort raises one flag for all; the next step does nothing, whomever it was for.

    Requests that nobody cancelled lose a step.
    """

    stopped = False

    def abort(self, request_id: str) -> None:
        self.stopped = any(r.id == request_id for r in self.waiting)
        super().abort(request_id)

    def schedule(self) -> FastPlan:
        if not self.stopped:
            return super().schedule()
        self.stopped = False
        self.in_flight.append(FastPlan())
        return self.in_flight[-1]


class _Remembers(FastEngine):
    ghost = False

    def abort(self, request_id: str) -> None:
        request = self.requests.get(request_id)
        if request is not None and request.prefilling and request.computed:
            self.ghost = True
        super().abort(request_id)


@fault(
    "latched-or-ghost-state",
    expects="WRK-1",
    needs="an abort between two chunks",
    beside=_Remembers,
)
class ChunkOfTheDead(Pass):
    """Who was between two chunks is remembered after it was aborted.

    "One in chunks at a time": nobody else is admitted any more.
    """

    def shut(self) -> Reason | None:
        ghost = isinstance(self.e, _Remembers) and self.e.ghost
        return Reason.NO_SEATS if ghost else super().shut()
