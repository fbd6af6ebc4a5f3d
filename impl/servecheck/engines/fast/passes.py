"""One scheduling pass of the fast engine.

Theory of operation. A pass is one loop over the running requests and one over the waiting ones, in
the order that policy gives. Each request is asked for its demand once, which decides whether there
is room, who gives way, and what is taken. A decode inside its last block, the most frequent case by
far, is recognised by one comparison (`FastRequest.steady`) and only counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecheck.engines.fast.log import ADMITTED, SCHEDULED, SKIPPED
from servecheck.engines.fast.plan import FastPlan, FastPlanned, FastRequest
from servespec import policy as choose
from servespec.events import Reason
from servespec.plan import PADDING
from servespec.policy import Phase
from servespec.request import peak

if TYPE_CHECKING:
    from servecheck.engines.fast.engine import FastEngine

_planned = tuple.__new__
"""Makes an entry of its parts, in half the time of its constructor."""


class Pass:
    """One scheduling pass over an engine."""

    __slots__ = ("e", "left", "plan", "preempted", "running_at_start", "threshold")

    def __init__(self, engine: FastEngine, plan: FastPlan) -> None:
        self.e = engine
        self.plan = plan
        self.left = engine.config.max_num_batched_tokens
        alone = len(engine.requests) == 1
        self.threshold = 0 if alone else engine.config.long_prefill_token_threshold
        self.running_at_start = len(engine.running)
        self.preempted = 0

    def run(self) -> None:
        for phase in self.e.phases:
            if phase is Phase.RUNNING:
                self.go_on()
            else:
                self.admit_all()

    # --- running requests ---

    def go_on(self) -> None:
        e = self.e
        size, pool, running, limit, cap = e.size, e.pool, e.running, e.config.max_model_len, e.cap
        admitted = len(self.plan.requests)
        if choose.shut_out_by_prefill(e.policy, bool(admitted)):
            for request in running[: len(running) - admitted]:
                self.skip(request, Reason.PREFILL)
            return
        i = self.decode(0)
        while i < len(running):
            request, left = running[i], self.left
            if not left:
                self.skip(request, Reason.NO_TOKENS)
                i += 1
                continue
            computed = request.computed
            tokens = len(request.text) + len(request.drafts) - computed
            if tokens > 1:
                tokens = min(tokens, self.threshold or tokens, left)
            stop = computed + tokens
            if stop > cap:
                stop = cap
                if stop <= computed:
                    self.skip(request, Reason.MODEL_LENGTH)
                    i += 1
                    continue
            slots = min(stop + e.ahead, limit)
            need = -(-slots // size) - len(request.table)
            if need > 0:
                if need > pool.free:
                    i, found = self.make_room(i, request, need)
                    if not found:
                        continue
                taken = pool.extend(need)
                request.table += taken
                self.book(request, stop, tuple(taken), False)
            else:
                self.book(request, stop, (), False)
            i = self.decode(i + 1)

    def decode(self, i: int) -> int:
        """Plan the decodes from `i` on that need nothing but counting; where the first other one
        stands."""
        e = self.e
        if e.in_flight:
            for plan in e.in_flight:
                plan.settle()
            return i  # the tokens in flight are not known yet
        stretch = e.running[i : i + self.left]
        for at, request in enumerate(stretch):
            if request.computed >= request.steady:
                del stretch[at:]
                break
            request.computed += 1
        self.plan.add_decodes(stretch)
        self.left -= len(stretch)
        if e.tells:
            e.log += [(SCHEDULED, request.id, 1, 0, ()) for request in stretch]
        return i + len(stretch)

    def make_room(self, i: int, request: FastRequest, need: int) -> tuple[int, bool]:
        """Preempt until `need` blocks are free for the request at `i`. Where the pass goes on, and
        whether the request has got its room."""
        e = self.e
        while need > e.pool.free:
            victim = choose.victim(e.policy, e.running)
            if victim is None:
                self.skip(request, Reason.NO_BLOCKS)
                return i + 1, False
            self.preempt(victim)
            if victim == i:
                return i, False
            if victim < i:
                i -= 1
        return i, True

    def skip(self, request: FastRequest, reason: Reason) -> None:
        if self.e.tells:
            self.e.log.append((SKIPPED, request.id, reason))

    def preempt(self, index: int) -> None:
        """Somebody gives way; if it was scheduled in this pass, its tokens come back."""
        request = self.e.running[index]
        self.left += self.plan.remove(request)
        self.e._send_back(index)
        self.preempted += 1

    # --- admissions ---

    def admit_all(self) -> None:
        e = self.e
        at = 0
        while at < len(e.waiting):
            request = e.waiting[at]
            reason = self.shut()
            if reason is not None:
                self.skip(request, reason)
                return
            reason = self.admit(request, at)
            if reason is None:
                continue
            self.skip(request, reason)
            if not choose.passes_over(e.policy):
                return
            at += 1

    def shut(self) -> Reason | None:
        e = self.e
        if choose.shut_by_preemption(e.policy, self.preempted):
            return Reason.PREEMPTION
        if choose.shut_by_batch(e.policy, self.running_at_start):
            return Reason.BATCH
        if self.left == 0:
            return Reason.NO_TOKENS
        if len(e.running) >= e.config.max_num_seqs:
            return Reason.NO_SEATS
        return None

    def admit(self, request: FastRequest, at: int) -> Reason | None:
        """Admit the waiting request at `at`, or say why not."""
        e = self.e
        pool, config, size = e.pool, e.config, e.size
        length = len(request.text)
        hits = pool.match(request.names, choose.hit_limit(e.policy, length, size))
        computed = min(len(hits) * size, length - 1)
        tokens, drafts = length - computed, request.drafts
        if self.pads(computed, tokens):
            tokens, drafts = 1 + e.gamma, (PADDING,) * e.gamma
            if tokens > self.left:
                return Reason.PADDING
        tokens = min(tokens, self.threshold or tokens)
        if tokens > self.left and not e.policy.chunked_prefill:
            return Reason.NO_CHUNKS
        tokens = min(tokens, self.left)
        limit = config.max_model_len
        slots = min(computed + tokens + e.ahead, limit)
        slots = choose.slots_at_admission(e.policy, slots, limit)
        look = choose.slots_looked_at(
            e.policy,
            text=min(length, limit),
            whole=peak(config, request.prompt, request.max_tokens),
        )
        new = max(-(-slots // size) - len(hits), 0)
        more = max(-(-look // size) - len(hits), new)
        room = pool.free - (config.watermark_blocks if e.running else 0)
        costs = more + self.promised()
        # A hit that is idle costs a free block as well; who are idle is asked if it can matter.
        if costs + len(hits) > room and costs + pool.idle(hits) > room:
            return Reason.NO_ROOM
        pool.acquire(hits)
        before = len(e.log)
        taken = pool.extend(new)
        request.table = hits + taken
        # Who is admitted is told before what that evicts.
        e.log.insert(before, (ADMITTED, request.id, computed, tuple(request.table)))
        request.computed = computed
        request.published = len(hits)
        request.drafts = drafts
        del e.waiting[at]
        e.running.append(request)
        self.book(request, computed + tokens, tuple(taken), True)
        return None

    def pads(self, computed: int, tokens: int) -> bool:
        """Rule 36: an admission of one token is padded to 1 + γ."""
        e = self.e
        if tokens != 1 or not e.gamma or not e.policy.pad_first_decode:
            return False
        ran = [entry for entry in self.plan.entries if not entry.admitted]
        return (
            (bool(ran) or computed > 0)
            and not any(entry.was_prefilling for entry in ran)
            and computed + 1 + e.gamma + 1 <= e.config.max_model_len
        )

    def promised(self) -> int:
        e = self.e
        return choose.promised(
            e.policy,
            (
                max(-(-peak(e.config, r.prompt, r.max_tokens) // e.size) - len(r.table), 0)
                for r in e.running
            ),
        )

    def book(self, request: FastRequest, stop: int, taken: tuple[int, ...], admitted: bool) -> None:
        """Put a request into the plan, and let C advance to `stop`."""
        e = self.e
        start, drafts, length = request.computed, request.drafts, len(request.text)
        if drafts:
            drafts = drafts[: stop - length]  # who has drafts lacks one token of its text
            request.drafts = ()
        yields = stop >= length
        blocks, new, was = len(request.table), len(taken), request.prefilling
        parts = (request, start, stop, drafts, blocks, new, yields, admitted, was)
        self.plan.add(_planned(FastPlanned, parts))
        request.computed = stop
        request.prefilling = not yields
        self.left -= stop - start
        if e.tells:
            e.log.append((SCHEDULED, request.id, stop - start, len(drafts), taken))
        if e.early and stop // e.size > request.published:
            e._publish(request, stop)
        request.steady = e.steady_until(request) if yields else 0
