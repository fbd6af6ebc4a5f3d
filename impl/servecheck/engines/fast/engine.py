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

from collections.abc import Iterable, Mapping
from itertools import islice

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
from servespec.machine import Machine, fits_alone
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

    def __init__(self, submit: Submit, arrival: int) -> None:
        self.id = submit.id
        self.namespace: Namespace = submit.namespace
        self.prompt = len(submit.prompt)
        self.text = list(submit.prompt)
        self.max_tokens = submit.max_tokens
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


class FastPlanned:
    """What the worker gets for one request."""

    __slots__ = (
        "admitted",
        "blocks",
        "cancelled",
        "drafts",
        "new_blocks",
        "request",
        "start",
        "stop",
        "table",
        "was_prefilling",
        "yields",
    )

    def __init__(self, request: FastRequest, tokens: int, new_blocks: int, admitted: bool) -> None:
        start, length = request.computed, len(request.text)
        self.request = request
        self.start = start
        self.stop = start + tokens
        self.drafts = request.drafts[: self.stop - length] if self.stop > length else ()
        self.table = request.table
        self.blocks = len(request.table)
        """Blocks of the table at the time of the plan: later ones are not this plan's."""
        self.new_blocks = new_blocks
        self.yields = self.stop >= length
        self.admitted = admitted
        self.was_prefilling = request.prefilling
        self.cancelled = False

    @property
    def tokens(self) -> Tokens:
        """What the forward pass is fed: text, then drafts."""
        return tuple(islice(self.request.text, self.start, self.stop - len(self.drafts))) + (
            self.drafts
        )


class FastPlan:
    __slots__ = ("deferred", "entries")

    def __init__(self) -> None:
        self.entries: list[FastPlanned] = []
        self.deferred: list[list[int]] = []


class FastEngine:
    """A serving loop with these sizes and these choices.

    Args:
        log: keep a record of what happens, for `events`. Without it only `apply` is not offered.

    Raises:
        ConfigError: sizes and choices contradict each other.
    """

    def __init__(self, config: Config, policy: Policy) -> None:
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
        self.late = choose.published_at(policy, Publish.AFTER_STEP)
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
        too_long = len(submit.prompt) > self.config.max_model_len
        picky = choose.refuses_impossible(self.policy)
        if too_long or (picky and not fits_alone(self.machine, submit)):
            self.log.append((REFUSED, submit.id, Reason.IMPOSSIBLE))
            return
        if submit.with_last:
            arrival = max((r.arrival for r in self.requests.values()), default=self.clock)
        else:
            arrival = self.clock = self.clock + 1
        request = FastRequest(submit, arrival)
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
        require(bool(self.in_flight), "Complete", "no plan is in flight", "schedule first")
        plan = self.in_flight[0]
        told = self._checked(plan, tuple(outputs))
        del self.in_flight[0]
        ended: set[str] = set()
        for entry in plan.entries:
            if entry.cancelled:
                continue
            request = entry.request
            reason = None
            if entry.yields:
                output = told[request.id]
                reason = self._append(request, entry, output.tokens)
                request.drafts = output.drafts
            if self.late:
                self._publish(request, request.computed - self._in_flight_of(request))
            if reason is not None:
                self._let_go(request)
                self._forget(request)
                ended.add(request.id)
                self.log.append((FINISHED, request.id, reason))
        for table in plan.deferred:
            self.pool.release(table)
        if ended:
            self.running = [r for r in self.running if r.id not in ended]

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
            if entry.cancelled:
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
                held.update(b for e in plan.entries if not e.cancelled for b in e.request.table)
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
        for plan in self.in_flight:
            for entry in plan.entries:
                if entry.request is request and not entry.cancelled:
                    entry.cancelled = True
                    last = plan
        table, request.table = request.table, []
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
            if e.request is request and not e.cancelled
        )

    def _append(self, request: FastRequest, entry: FastPlanned, tokens: Tokens) -> Reason | None:
        """Take in what a step sampled: roll rejected drafts back, append until one ends it."""
        text = request.text
        position = len(text) - request.prompt
        room = min(self.config.max_model_len - len(text), request.max_tokens - position)
        kept, reason = len(tokens), None
        for count, token in enumerate(tokens, 1):
            if token in request.stop:
                kept, reason = count, Reason.STOP
                break
            if count >= room:
                kept, reason = count, Reason.LENGTH
                break
        rejected = len(entry.drafts) - (len(tokens) - 1)
        request.computed -= rejected + len(tokens) - kept
        taken = tokens if kept == len(tokens) else tokens[:kept]
        text.extend(taken)
        self.log.append((DELIVERED, request.id, position, taken))
        if self.shares and len(text) // self.size > len(request.names):
            self.pool.trie.extend(request.names, request.namespace, text, self.size)
        return reason

    def _checked(self, plan: FastPlan, outputs: tuple[Output, ...]) -> Mapping[str, Output]:
        told = {output.id: output for output in outputs}
        require(len(told) == len(outputs), "Complete", "an id comes twice", "one output a request")
        entries = {entry.request.id: entry for entry in plan.entries}
        for output in outputs:
            require(
                output.id in entries,
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
        for entry in plan.entries:
            if not entry.cancelled:
                _check_tokens(entry, told)
        return told


def _check_tokens(entry: FastPlanned, told: Mapping[str, Output]) -> None:
    output = told.get(entry.request.id)
    tokens = () if output is None else output.tokens
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
        size, pool, running, log = e.size, e.pool, e.running, e.log
        limit = e.config.max_model_len
        admitted = len(self.plan.entries)
        shut = choose.shut_out_by_prefill(e.policy, bool(admitted))
        i = 0
        while i < len(running) - admitted:
            request = running[i]
            if shut:
                log.append((SKIPPED, request.id, Reason.PREFILL))
                i += 1
                continue
            if self.left == 0:
                log.append((SKIPPED, request.id, Reason.NO_TOKENS))
                i += 1
                continue
            computed = request.computed
            tokens = len(request.text) + len(request.drafts) - computed
            if self.threshold and tokens > self.threshold:
                tokens = self.threshold
            tokens = min(tokens, self.left, e.cap - computed)
            if tokens <= 0:
                log.append((SKIPPED, request.id, Reason.MODEL_LENGTH))
                i += 1
                continue
            slots = min(computed + tokens + e.ahead, limit)
            need = -(-slots // size) - len(request.table)
            while need > pool.free:
                victim = choose.victim(e.policy, running)
                if victim is None:
                    log.append((SKIPPED, request.id, Reason.NO_BLOCKS))
                    i += 1
                    break
                itself = victim == i
                self.preempt(victim)
                if itself:
                    break
                if victim < i:
                    i -= 1
            else:
                if need > 0:
                    taken = pool.extend(need)
                    request.table += taken
                    self.book(request, tokens, tuple(taken), admitted=False)
                else:
                    self.book(request, tokens, (), admitted=False)
                i += 1

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
                e.log.append((SKIPPED, request.id, reason))
                return
            reason = self.admit(request, at)
            if reason is None:
                continue
            e.log.append((SKIPPED, request.id, reason))
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
        self.book(request, tokens, tuple(taken), admitted=True)
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

    def book(
        self, request: FastRequest, tokens: int, taken: tuple[int, ...], admitted: bool
    ) -> None:
        """Put a request into the plan, and let C advance."""
        e = self.e
        entry = FastPlanned(request, tokens, len(taken), admitted)
        self.plan.entries.append(entry)
        request.computed = entry.stop
        request.drafts = ()
        request.prefilling = not entry.yields
        self.left -= tokens
        e.log.append((SCHEDULED, request.id, tokens, len(entry.drafts), taken))
        if e.early:
            e._publish(request, entry.stop)


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
