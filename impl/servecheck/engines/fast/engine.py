"""The fast engine: a mutable serving loop that refines the specification, step for step.

Theory of operation. The verbs are the machine's actions. A pass is one loop over the running
requests and one over the waiting ones; a request's text is a list that grows, its table a list
that grows, its names the nodes of its full blocks. Work is done per block that changes hands and
per request that a pass touches, never per token of a text.

What each verb decides is exactly what `servespec` says; which is the whole point, and is checked
along every path by REF-1 and REF-2 (`servecheck.engines.fast.abstraction`). Where policy has a
choice, the engine asks `servespec.policy`: once, when it is built, for all that depends on the
policy alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from servecheck.engines.fast.pool import CLEARED, REMOVED, STORED, Entry, FastPool
from servecheck.engines.fast.trie import Node
from servespec import policy as choose
from servespec.actions import (
    Abort,
    Action,
    Complete,
    Discard,
    Output,
    ResetCache,
    Schedule,
    Submit,
)
from servespec.chain import Namespace, Tokens
from servespec.config import Config, usable_blocks
from servespec.errors import require
from servespec.events import (
    Admitted,
    BlockRemoved,
    BlockStored,
    CacheCleared,
    Delivered,
    Event,
    Finished,
    Preempted,
    Reason,
    Refused,
    Scheduled,
    Skipped,
    Submitted,
)
from servespec.machine import Machine, refused
from servespec.plan import PADDING
from servespec.policy import Admission, Batching, Memory, Phase, Policy, Publish, Sharing
from servespec.request import peak

ADMITTED, SCHEDULED, SKIPPED, PREEMPTED = "admitted", "scheduled", "skipped", "preempted"
SUBMITTED, DELIVERED, FINISHED, REFUSED = "submitted", "delivered", "finished", "refused"


class FastRequest:
    """A live request."""

    __slots__ = (
        "arrival",
        "computed",
        "drafts",
        "id",
        "limit",
        "max_tokens",
        "names",
        "namespace",
        "prefilling",
        "priority",
        "prompt",
        "published",
        "stop",
        "table",
        "text",
    )

    def __init__(self, submit: Submit, arrival: int, max_model_len: int) -> None:
        self.id = submit.id
        self.namespace: Namespace = submit.namespace
        self.prompt = len(submit.prompt)
        self.text = list(submit.prompt)
        self.max_tokens = submit.max_tokens
        self.limit = min(max_model_len, self.prompt + self.max_tokens)
        """Length of the text at which it ends, if no token ends it before."""
        self.priority = submit.priority
        self.stop = submit.stop
        self.arrival = arrival
        """Moment of arrival: only the order of moments means something."""
        self.names: list[Node] = []
        self.table: list[int] = []
        self.computed = 0
        self.published = 0
        self.drafts: Tokens = ()
        self.prefilling = True


class FastPlanned(NamedTuple):
    """What the worker gets for one request."""

    request: FastRequest
    start: int
    stop: int
    drafts: Tokens
    blocks: int
    """Blocks of the table at the time of the plan: later ones are not this plan's."""
    new_blocks: int
    yields: bool
    admitted: bool
    was_prefilling: bool

    @property
    def tokens(self) -> Tokens:
        """What the forward pass is fed: text, then drafts."""
        text = self.request.text[self.start : self.stop - len(self.drafts)]
        return tuple(text) + self.drafts


_planned = tuple.__new__
"""Makes an entry of its parts, in half the time of its constructor."""


class FastPlan:
    """Entries in order of scheduling, and what has become of their requests since."""

    __slots__ = ("deferred", "entries", "gone")

    def __init__(self) -> None:
        self.entries: list[FastPlanned] = []
        self.deferred: list[list[int]] = []
        self.gone: dict[FastRequest, list[int]] = {}
        """Requests that have left, or were sent back: their output is ignored. With the table
        that the step still writes through."""

    def live(self, entry: FastPlanned) -> bool:
        """The entry's request is still there, and takes its output."""
        return entry.request not in self.gone


class FastEngine:
    """A serving loop with these sizes and these choices.

    Args:
        tells: keep a record of all that happens, for `events`; else only of what happens to the
            cache, as a serving engine does that has its metrics elsewhere.

    Raises:
        ConfigError: sizes and choices contradict each other.
    """

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
        self.reserves = policy.memory is Memory.RESERVED
        self.promises = policy.admission is Admission.WHOLE_REQUEST
        self.static = policy.batching is Batching.STATIC
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
        found = tuple(_event(entry) for entry in self.log)
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
            names = self.pool.trie
            names.extend(request.names, request.namespace, submit.prompt, self.size)
        self.requests[submit.id] = request
        self._wait(request, preempted=False)
        self.log.append((SUBMITTED, submit.id))

    def schedule(self) -> FastPlan:
        require(
            len(self.in_flight) < self.config.max_steps_in_flight,
            "Schedule",
            f"{len(self.in_flight)} plans are in flight",
            "complete or discard one first",
        )
        plan = FastPlan()
        _Pass(self, plan).run()
        self.in_flight.append(plan)
        return plan

    def complete(self, outputs: Iterable[Output]) -> None:
        """The oldest plan has run; outputs by request."""
        require(bool(self.in_flight), "Complete", "no plan is in flight", "schedule first")
        plan = self.in_flight[0]
        told = self._told(plan, tuple(outputs))
        nothing = Output("")
        mine = [told.get(entry.request.id, nothing) for entry in plan.entries]
        self.take_in([output.tokens for output in mine], [output.drafts for output in mine])

    def take_in(self, sampled: Sequence[Tokens], drafts: Sequence[Tokens] = ()) -> None:
        """The oldest plan has run; sampled tokens, and drafts for the next one, in its order. Those
        of requests that have left are ignored."""
        require(bool(self.in_flight), "Complete", "no plan is in flight", "schedule first")
        plan = self.in_flight[0]
        require(
            len(sampled) == len(plan.entries),
            "Complete",
            f"{len(sampled)} outputs for {len(plan.entries)} requests",
            "bring one for each entry of the plan",
        )
        for entry, tokens in zip(plan.entries, sampled, strict=True):
            if (not tokens) is entry.yields or len(tokens) > 1:
                _check_tokens(plan, entry, tokens)
        del self.in_flight[0]
        ended = self._take_in(plan, sampled)
        for entry, ahead in zip(plan.entries, drafts, strict=False):
            if entry.yields and entry.request.id in self.requests and plan.live(entry):
                entry.request.drafts = ahead
        for table in plan.deferred:
            self.pool.release(table)
        if ended:
            self.running = [r for r in self.running if r not in ended]

    def _take_in(self, plan: FastPlan, sampled: Sequence[Tokens]) -> set[FastRequest]:
        """Append, publish, end: in scheduling order. Who has ended."""
        size, shares, late, tells, gone = self.size, self.shares, self.late, self.tells, plan.gone
        ended: set[FastRequest] = set()
        for entry, tokens in zip(plan.entries, sampled, strict=True):
            request = entry.request
            if gone and request in gone:
                continue
            reason = None
            if tokens:
                text = request.text
                if entry.drafts or request.stop or len(tokens) > 1:
                    tokens, reason = self._until_end(request, entry, tokens)
                elif len(text) + 1 >= request.limit:
                    reason = Reason.LENGTH
                if tells:
                    self.log.append((DELIVERED, request.id, len(text) - request.prompt, tokens))
                text += tokens
                if shares and len(text) // size > len(request.names):
                    self.pool.trie.extend(request.names, request.namespace, text, size)
            if late:
                self._publish(request, request.computed - self._in_flight_of(request))
            if reason is not None:
                self._let_go(request)
                self._forget(request)
                ended.add(request)
                if tells:
                    self.log.append((FINISHED, request.id, reason))
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
            if not plan.live(entry):
                continue
            request = entry.request
            keep = len(request.table) - choose.returned_blocks(self.policy, entry.new_blocks)
            self.pool.release(request.table[keep:])
            del request.table[keep:]
            request.computed = entry.start
            request.prefilling = entry.was_prefilling
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

    def _held_after_preemption(self) -> int:
        """Blocks that would stay held if all that runs were sent back."""
        held = {b for plan in self.in_flight for table in plan.deferred for b in table}
        if choose.defers_release(self.policy):
            for plan in self.in_flight:
                held.update(b for e in plan.entries if plan.live(e) for b in e.request.table)
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
        table, request.table = request.table, []
        for plan in self.in_flight:
            if request not in plan.gone and any(e.request is request for e in plan.entries):
                plan.gone[request] = table
                last = plan
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
        upto = min(tokens // self.size, len(request.names))
        if upto > request.published:
            self.pool.publish(request.table, request.names, request.published, upto)
            request.published = upto

    def _in_flight_of(self, request: FastRequest) -> int:
        return sum(
            e.stop - e.start
            for plan in self.in_flight
            for e in plan.entries
            if e.request is request and plan.live(e)
        )

    def _until_end(
        self, request: FastRequest, entry: FastPlanned, tokens: Tokens
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
        request.computed -= len(entry.drafts) + 1 - kept
        return tokens[:kept], reason

    def _told(self, plan: FastPlan, outputs: tuple[Output, ...]) -> dict[str, Output]:
        told = {output.id: output for output in outputs}
        require(len(told) == len(outputs), "Complete", "an id comes twice", "one output a request")
        ids = {entry.request.id for entry in plan.entries}
        for output in outputs:
            require(
                output.id in ids,
                "Complete",
                f"request {output.id!r} is not in the plan",
                "bring outputs of the plan's requests only",
            )
            require(
                len(output.drafts) <= self.gamma,
                "Complete",
                f"{len(output.drafts)} drafts for request {output.id!r}",
                f"propose at most {self.gamma}",
            )
        return told


def _check_tokens(plan: FastPlan, entry: FastPlanned, tokens: Tokens) -> None:
    """Outputs of those who have left are ignored, whatever they are."""
    if not plan.live(entry):
        return
    require(
        bool(tokens) == entry.yields,
        "Complete",
        f"request {entry.request.id!r} has {len(tokens)} tokens",
        "a prefill chunk samples none, any other pass at least one",
    )
    accepted = tokens[:-1]
    if accepted:
        padded = entry.drafts[0:1] == (PADDING,)
        require(
            not padded and accepted == entry.drafts[: len(accepted)],
            "Complete",
            f"request {entry.request.id!r} accepts {accepted} of drafts {entry.drafts}",
            "accepted drafts are the first ones, and one token follows",
        )


class _Pass:
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
        admitted = len(self.plan.entries)
        shut = choose.shut_out_by_prefill(e.policy, bool(admitted))
        plain, entries = not e.tells, self.plan.entries
        i = 0
        while i < len(running) - admitted:
            request, left = running[i], self.left
            if shut or not left:
                self.skip(request, Reason.PREFILL if shut else Reason.NO_TOKENS)
                i += 1
                continue
            computed = request.computed
            tokens = len(request.text) + len(request.drafts) - computed
            if tokens > 1:
                tokens = min(tokens, self.threshold or tokens, left)
            stop = computed + tokens
            if stop > cap:
                stop = cap
                tokens = stop - computed
                if tokens <= 0:
                    self.skip(request, Reason.MODEL_LENGTH)
                    i += 1
                    continue
            slots = stop + e.ahead
            if slots > limit:
                slots = limit
            table = request.table
            if slots > len(table) * size:
                need = -(-slots // size) - len(table)
                i, found = self.make_room(i, request, need)
                if found:
                    taken = tuple(pool.extend(need))
                    table += taken
                    self.book(request, stop, taken, False)
                    i += 1
                continue
            if tokens == 1 and plain and stop < (request.published + 1) * size:
                # A decode inside its last block, the most frequent case: nothing but counting.
                entry = (request, computed, stop, (), len(table), 0, True, False, False)
                decodes = stop == len(request.text) and not request.prefilling
                if decodes and not request.drafts:
                    entries.append(_planned(FastPlanned, entry))
                    request.computed = stop
                    self.left = left - 1
                    i += 1
                    continue
            self.book(request, stop, (), False)
            i += 1

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
        for at, entry in enumerate(self.plan.entries):
            if entry.request is request:
                self.left += entry.stop - entry.start
                del self.plan.entries[at]
                break
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
        if e.static and choose.shut_by_batch(e.policy, self.running_at_start):
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
        if more + pool.idle(hits) + self.promised() > room:
            return Reason.NO_ROOM
        pool.acquire(hits)
        e.log.append((ADMITTED, request.id, computed, hits))
        admitted = len(e.log) - 1
        taken = pool.extend(new)
        request.table = hits + taken
        e.log[admitted] = (ADMITTED, request.id, computed, tuple(request.table))
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
        if not e.promises:
            return 0
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
            drafts = drafts[: stop - length] if stop > length else ()
            request.drafts = ()
        yields = stop >= length
        blocks, new, was = len(request.table), len(taken), request.prefilling
        entry = (request, start, stop, drafts, blocks, new, yields, admitted, was)
        self.plan.entries.append(_planned(FastPlanned, entry))
        request.computed = stop
        request.prefilling = not yields
        self.left -= stop - start
        if e.tells:
            e.log.append((SCHEDULED, request.id, stop - start, len(drafts), taken))
        if e.early and stop // e.size > request.published:
            e._publish(request, stop)


_EVENTS = {
    SUBMITTED: Submitted,
    ADMITTED: Admitted,
    SCHEDULED: Scheduled,
    SKIPPED: Skipped,
    PREEMPTED: Preempted,
    DELIVERED: Delivered,
    FINISHED: Finished,
    REFUSED: Refused,
}


def _event(entry: Entry) -> Event:
    """One entry of the log as the specification says it."""
    match entry:
        case (str(kind), int(block), Node() as name) if kind == STORED:
            return BlockStored(block, name.chain, name.chain.parent)
        case (str(kind), int(block), Node() as name) if kind == REMOVED:
            return BlockRemoved(block, name.chain)
        case (str(kind),) if kind == CLEARED:
            return CacheCleared()
        case (str(kind), *values):
            made: Event = _EVENTS[kind](*values)
            return made
    raise LookupError(f"the log holds {entry!r}")
