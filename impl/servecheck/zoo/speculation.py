"""Faults of speculation: drafts, what they need, and what is left of them."""

from __future__ import annotations

from collections.abc import Sequence

from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.passes import Pass
from servecheck.engines.fast.plan import FastRequest
from servecheck.zoo.entry import fault
from servespec.chain import Tokens
from servespec.config import Config
from servespec.events import Reason
from servespec.policy import Policy

# --- outcomes ----------------------------------------------------------------------------------


@fault("computed-counter-wrong", expects="REQ-1", needs="a rejected draft")
class RejectedCounts(FastEngine):
    """Rejected drafts stay in what counts as computed.

    Positions are skipped, and read as they were written for other tokens.
    """

    def _until_end(
        self, request: FastRequest, drafts: Tokens, tokens: Tokens
    ) -> tuple[Tokens, Reason | None]:
        computed = request.computed
        found = super()._until_end(request, drafts, tokens)
        request.computed = computed
        return found


@fault("computed-counter-wrong", expects="REQ-1", needs="a pass that samples nothing")
class NothingIsMinusOne(FastEngine):
    """Accepted drafts are counted as the output's length minus one, of an empty output too.

    The counter of a chunk goes back by one.
    """

    def take_in(self, sampled: Sequence[Tokens], drafts: Sequence[Tokens] = ()) -> None:
        plan = self.in_flight[0] if self.in_flight else None
        super().take_in(sampled, drafts)
        for request, tokens in zip(plan.requests, sampled, strict=True) if plan is not None else ():
            if self.gamma and not tokens and plan is not None and plan.live(request):
                request.computed -= 1


@fault("off-by-one", expects="END-1", needs="a stop token in the middle of accepted drafts")
class EndTestedLast(FastEngine):
    """The end is tested after all tokens of a step are appended.

    A stop token in the middle is not seen, or what follows it is delivered.
    """

    def _until_end(
        self, request: FastRequest, drafts: Tokens, tokens: Tokens
    ) -> tuple[Tokens, Reason | None]:
        room = request.limit - len(request.text)
        request.computed -= len(drafts) + 1 - len(tokens)
        if tokens[-1] in request.stop:
            return tokens, Reason.STOP
        return tokens, Reason.LENGTH if len(tokens) >= room else None


@fault("mirror-desync", expects="REQ-1", needs="somebody left while others have drafts")
class DraftsOutOfStep(FastEngine):
    """When somebody leaves, the list of drafts loses its last row instead of that one's.

    Requests are given each other's drafts.
    """

    def take_in(self, sampled: Sequence[Tokens], drafts: Sequence[Tokens] = ()) -> None:
        plan = self.in_flight[0] if self.in_flight else None
        if plan is not None and drafts:
            rows = zip(plan.requests, drafts, strict=True)
            drafts = [row for request, row in rows if plan.live(request)]
        super().take_in(sampled, drafts)


# --- room --------------------------------------------------------------------------------------


@fault("plan-vs-execution-demand", expects="DEM-1", needs="look-ahead slots")
class LookAheadForgotten(FastEngine):
    """Slots that are looked ahead are no part of the demand.

    The drafter writes where nothing was allocated.
    """

    def __init__(self, config: Config, policy: Policy, *, tells: bool = True) -> None:
        super().__init__(config, policy, tells=tells)
        self.ahead = 0


@fault(
    "plan-vs-execution-demand", expects="APPLY-1", needs="drafts that begin a block, a full pool"
)
class DraftBlocksNotCounted(Pass):
    """How many must give way is decided by one token a request; a step verifies several.

    The allocation for the drafts fails.
    """

    def make_room(self, i: int, request: FastRequest, need: int) -> tuple[int, bool]:
        slots = min(len(request.text) + self.e.ahead, self.e.config.max_model_len)
        without = max(-(-slots // self.e.size) - len(request.table), 0)
        return super().make_room(i, request, min(need, without))


@fault("plan-vs-execution-demand", expects="TOK-1", needs="drafts at the longest text")
class PastTheLimit(FastEngine):
    """Drafts are not cut at the longest text.

    Positions are computed that no table has.
    """

    def __init__(self, config: Config, policy: Policy, *, tells: bool = True) -> None:
        super().__init__(config, policy, tells=tells)
        self.cap += self.gamma


@fault("mirror-desync", expects="OWN-2", needs="drafts that begin a block")
class DraftBlocksNotNoted(Pass):
    """Blocks taken for drafts are in the plan, and not in the table of the request.

    When it leaves they are not let go.
    """

    def book(self, request: FastRequest, stop: int, taken: tuple[int, ...], admitted: bool) -> None:
        drafts = request.drafts
        super().book(request, stop, taken, admitted)
        if drafts and taken:
            del request.table[-(-len(request.text) // self.e.size) :]


@fault("unit-or-rounding-mismatch", expects="DEM-1", needs="a step that begins in a block")
class UnalignedLength(Pass):
    """What is held is rounded down to whole blocks, what is needed is rounded up.

    A step that begins inside a block takes one too many.
    """

    def book(self, request: FastRequest, stop: int, taken: tuple[int, ...], admitted: bool) -> None:
        e = self.e
        if not admitted and request.drafts and request.computed % e.size and e.pool.free:
            more = e.pool.extend(1)
            request.table += more
            taken = (*taken, *more)
        super().book(request, stop, taken, admitted)


@fault("plan-vs-execution-demand", expects="LRU-1", needs="drafts that begin a block")
class DraftsInTheNextBlock(Pass):
    """Slots of drafts are counted on from the last one, into the block with the next number.

    That block belongs to somebody else.
    """

    def book(self, request: FastRequest, stop: int, taken: tuple[int, ...], admitted: bool) -> None:
        if request.drafts and taken and len(request.table) > len(taken):
            count, last = len(taken), request.table[-len(taken) - 1]
            top = len(self.e.pool.ref)
            request.table[-count:] = [(last + 1 + k) % top for k in range(count)]
        super().book(request, stop, taken, admitted)


# --- counters ----------------------------------------------------------------------------------


@fault("mirror-desync", expects="REQ-1", needs="drafts that are scheduled")
class DraftsStay(Pass):
    """Drafts that were scheduled stay in the request's list.

    Where nothing new is proposed they are scheduled once more.
    """

    def book(self, request: FastRequest, stop: int, taken: tuple[int, ...], admitted: bool) -> None:
        drafts = request.drafts
        super().book(request, stop, taken, admitted)
        request.drafts = drafts


@fault("computed-counter-wrong", expects="REQ-1", needs="drafts that are scheduled")
class DraftsCountedTwice(Pass):
    """The length of a step's drafts is added once where they are planned, and once more.

    Reads begin behind what was written.
    """

    def book(self, request: FastRequest, stop: int, taken: tuple[int, ...], admitted: bool) -> None:
        drafts = request.drafts
        super().book(request, stop, taken, admitted)
        request.computed += len(drafts)
