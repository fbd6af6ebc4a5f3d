"""The fast engine: a mutable serving loop that refines the specification, step for step.

Theory of operation. The verbs are the machine's actions. Around them stand, each in a file:
`passes` (one scheduling pass), `plan` (live requests and plans), `answers` (what the model may
bring), `pool` (blocks and the free queue), `trie` and `text` (names, and the index), `log` (what
happened, as events when asked). Work is done per block that changes hands and per request that a
pass touches, never per token of a text.

What each verb decides is exactly what `servespec` says; which is the whole point, and is checked
along every path by REF-1 and REF-2 (`servecheck.engines.fast.abstraction`). Where policy has a
choice, the engine asks `servespec.policy`: once, when it is built, for all that depends on the
policy alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from servecheck.engines.fast import log
from servecheck.engines.fast.answers import by_request, check_tokens
from servecheck.engines.fast.log import DELIVERED, FINISHED, PREEMPTED, REFUSED, SUBMITTED, Entry
from servecheck.engines.fast.passes import Pass
from servecheck.engines.fast.plan import FastPlan, FastRequest
from servecheck.engines.fast.pool import FastPool
from servespec import policy as choose
from servespec.actions import Abort, Action, Complete, Discard, Output, ResetCache, Schedule, Submit
from servespec.chain import Tokens
from servespec.config import Config, usable_blocks
from servespec.errors import ActionDisabled, require
from servespec.events import Event, Reason
from servespec.machine import Machine, refused
from servespec.policy import Policy, Publish, Sharing


class FastEngine:
    """A serving loop with these sizes and these choices.

    Args:
        tells: keep a record of all that happens, for `events`; else only of what happens to the
            cache, as a serving engine does that has its metrics elsewhere.

    Raises:
        ConfigError: sizes and choices contradict each other.
    """

    passes: type[Pass] = Pass
    """What makes the plans."""

    def __init__(self, config: Config, policy: Policy, *, tells: bool = True) -> None:
        self.tells = tells
        self.config = config
        self.policy = policy
        self.log: list[Entry] = []
        self.pool = FastPool(config, policy, self.log)
        self.requests: dict[str, FastRequest] = {}
        self.waiting: list[FastRequest] = []
        self.running: list[FastRequest] = []
        self.in_flight: list[FastPlan] = []
        self.clock = 0
        self.machine = Machine(config, policy)
        # What depends on the policy alone is asked once.
        self.size = config.block_size
        self.shares = policy.sharing is Sharing.FULL_BLOCKS
        self.early = choose.published_at(policy, Publish.AT_SCHEDULE)
        # Published at scheduling, and without drafts, nothing is left to publish afterwards.
        self.late = not self.early or config.num_speculative_tokens > 0
        self.cap = choose.running_cap(policy, config.max_model_len)
        self.phases = choose.phases(policy)
        self.gamma = config.num_speculative_tokens
        self.ahead = config.num_lookahead_tokens
        self.usable = usable_blocks(config, policy)

    # --- the machine's actions ---

    def apply(self, action: Action) -> tuple[Event, ...]:
        """One transition, as the machine does it, and its events.

        Raises:
            ActionDisabled: this state does not offer the action; nothing happened.
        """
        self.log.clear()
        match action:
            case Submit():
                self.submit(action)
            case Schedule():
                self.schedule()
            case Complete(outputs):
                self.complete(outputs)
            case Discard():
                self.discard()
            case Abort(id):
                self.abort(id)
            case ResetCache(preempt_running):
                self.reset_cache(preempt_running)
        return self.events()

    def events(self) -> tuple[Event, ...]:
        """What the log says, as events; the log is empty afterwards."""
        found = tuple(log.events(self.log))
        self.log.clear()
        return found

    def submit(self, submit: Submit) -> None:
        require(
            submit.id not in self.requests,
            f"Submit {submit.id!r}",
            "a request with this id is alive",
            "wait until it has left, or choose another id",
        )
        if refused(self.machine, submit):
            self.log.append((REFUSED, submit.id, Reason.IMPOSSIBLE))
            return
        if submit.with_last:
            arrival = max((r.arrival for r in self.requests.values()), default=self.clock)
        else:
            arrival = self.clock = self.clock + 1
        request = FastRequest(submit, arrival, self.config.max_model_len)
        if self.shares:
            self.pool.trie.extend(request.names, request.namespace, request.text, self.size)
        self.requests[submit.id] = request
        self._wait(request, preempted=False)
        self.log.append((SUBMITTED, submit.id))

    def schedule(self) -> FastPlan:
        if len(self.in_flight) >= self.config.max_steps_in_flight:
            what = f"{len(self.in_flight)} plans are in flight"
            raise ActionDisabled("Schedule", what, "complete or discard one first")
        plan = FastPlan()
        self.passes(self, plan).run()
        self.in_flight.append(plan)
        return plan

    def complete(self, outputs: Iterable[Output]) -> None:
        """The oldest plan has run; outputs by request."""
        require(bool(self.in_flight), "Complete", "no plan is in flight", "schedule first")
        plan = self.in_flight[0]
        told = by_request(plan, tuple(outputs), self.gamma)
        nothing = Output("")
        mine = [told.get(request.id, nothing) for request in plan.requests]
        self.take_in([output.tokens for output in mine], [output.drafts for output in mine])

    def take_in(self, sampled: Sequence[Tokens], drafts: Sequence[Tokens] = ()) -> None:
        """The oldest plan has run; sampled tokens, and drafts for the next one, in its order. Those
        of requests that have left are ignored."""
        require(bool(self.in_flight), "Complete", "no plan is in flight", "schedule first")
        plan = self.in_flight[0]
        if len(sampled) != len(plan.requests):
            what = f"{len(sampled)} outputs for {len(plan.requests)} requests"
            raise ActionDisabled("Complete", what, "bring one for each entry of the plan")
        # All but a token for each that yields one wants a closer look.
        if plan.yields != list(map(len, sampled)):
            for entry, tokens in zip(plan.entries, sampled, strict=True):
                check_tokens(plan, entry, tokens)
        del self.in_flight[0]
        ended = self._take_in(plan, sampled)
        for request, yields, ahead in zip(plan.requests, plan.yields, drafts, strict=False):
            if yields and request.id in self.requests and plan.live(request):
                request.drafts = ahead
        for table in plan.deferred:
            self.pool.release(table)
        if ended:
            self.running = [r for r in self.running if r not in ended]

    def _take_in(self, plan: FastPlan, sampled: Sequence[Tokens]) -> set[FastRequest]:
        """Append, publish, end: in scheduling order. Who has ended."""
        tells, log = self.tells, self.log
        ended: set[FastRequest] = set()
        rows = zip(plan.requests, plan.details, sampled, strict=True)
        for request, entry, tokens in [r for r in rows if plan.live(r[0])] if plan.gone else rows:
            text, reason = request.text, None
            if tokens:
                if request.computed < request.edge:
                    if tells:
                        log.append((DELIVERED, request.id, len(text) - request.prompt, tokens))
                    text += tokens
                    continue
                drafts = entry.drafts if entry is not None else ()
                if request.stop or drafts:
                    tokens, reason = self._until_end(request, drafts, tokens)
                elif len(text) + 1 >= request.limit:
                    reason = Reason.LENGTH
                if tells:
                    log.append((DELIVERED, request.id, len(text) - request.prompt, tokens))
                text += tokens
                if self.shares:
                    self.pool.trie.extend(request.names, request.namespace, text, self.size)
                request.edge = self.edge_of(request)
            if self.late:
                self._publish(request, request.computed - self._in_flight_of(request))
            if reason is not None:
                self._let_go(request)
                self._forget(request)
                ended.add(request)
                if tells:
                    log.append((FINISHED, request.id, reason))
        return ended

    def discard(self) -> None:
        require(bool(self.in_flight), "Discard", "no plan is in flight", "schedule first")
        require(
            not self.policy.publishes_unwritten,
            "Discard",
            "this policy publishes blocks before they are written",
            "complete the plan",
        )
        plan = self.in_flight.pop()
        for entry in plan.entries:
            if not plan.live(entry.request):
                continue
            request = entry.request
            keep = len(request.table) - choose.returned_blocks(self.policy, entry.new_blocks)
            self.pool.release(request.table[keep:])
            del request.table[keep:]
            request.computed = entry.start
            request.prefilling = entry.was_prefilling
            request.steady = 0
        for table in plan.deferred:
            self.pool.release(table)

    def abort(self, request_id: str) -> None:
        request = self.requests.get(request_id)
        if request is None:
            return
        self._let_go(request)
        self._forget(request)
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self.log.append((FINISHED, request_id, Reason.ABORT))

    def reset_cache(self, preempt_running: bool) -> None:
        preempts = choose.preempts_for_reset(self.policy, preempt_running)
        held = self.usable - self.pool.free
        if preempts:
            held = self._held_after_preemption()
        if held:
            self.log.append((REFUSED, "reset", Reason.HELD))
            return
        if preempts:
            while self.running:
                self._send_back(len(self.running) - 1)
        self.pool.clear()

    # --- what the actions share ---

    def steady_until(self, request: FastRequest) -> int:
        """C up to which a decode of this request needs no block, publishes none, and is allowed."""
        if self.gamma:
            return 0
        until = len(request.table) * self.size
        if until > self.cap:
            until = self.cap
        if self.early and self.shares:
            publishes = (request.published + 1) * self.size
            if until >= publishes:
                until = publishes - 1
        return until

    def edge_of(self, request: FastRequest) -> int:
        """C up to which a token that a decode brings fills no block and ends nothing; 0 if each
        token counts, because it may end the text, or because what is computed is published."""
        if request.stop or self.late:
            return 0
        full = (request.names.count + 1) * self.size if self.shares else request.limit
        return (full if full < request.limit else request.limit) - 1

    def _held_after_preemption(self) -> int:
        """Blocks that would stay held if all that runs were sent back."""
        held = {b for plan in self.in_flight for table in plan.deferred for b in table}
        if choose.defers_release(self.policy):
            for plan in self.in_flight:
                held.update(b for r in plan.requests if plan.live(r) for b in r.table)
        return len(held)

    def _wait(self, request: FastRequest, preempted: bool) -> None:
        place = choose.place_in_waiting(self.policy, self.waiting, request, preempted)
        self.waiting.insert(place, request)

    def _forget(self, request: FastRequest) -> None:
        del self.requests[request.id]
        self.pool.trie.drop(request.names)

    def _let_go(self, request: FastRequest) -> None:
        """Who leaves, or is sent back, has its output ignored and its table released."""
        last = None
        table = request.table
        for plan in self.in_flight:
            if plan.leave(request, table):
                last = plan
        request.table = []
        if last is not None and choose.defers_release(self.policy):
            last.deferred.append(table)
        else:
            self.pool.release(table)

    def _send_back(self, index: int) -> None:
        request = self.running.pop(index)
        self._let_go(request)
        request.computed = request.published = 0
        request.drafts = ()
        request.prefilling = True
        self._wait(request, preempted=True)
        self.log.append((PREEMPTED, request.id))

    def _publish(self, request: FastRequest, tokens: int) -> None:
        upto = min(tokens // self.size, request.names.count)
        if upto > request.published:
            self.pool.publish(request.table, request.names, request.published, upto)
            request.published = upto

    def _in_flight_of(self, request: FastRequest) -> int:
        return sum(
            e.stop - e.start
            for plan in self.in_flight
            for e in plan.entries
            if e.request is request and plan.live(request)
        )

    def _until_end(
        self, request: FastRequest, drafts: Tokens, tokens: Tokens
    ) -> tuple[Tokens, Reason | None]:
        """Roll rejected drafts back, and cut the tokens where one ends the request."""
        room = request.limit - len(request.text)
        kept, reason = len(tokens), None
        for count, token in enumerate(tokens, 1):
            if token in request.stop:
                kept, reason = count, Reason.STOP
                break
            if count >= room:
                kept, reason = count, Reason.LENGTH
                break
        request.computed -= len(drafts) + 1 - kept
        return tokens[:kept], reason
