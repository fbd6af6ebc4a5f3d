"""One scheduling pass: a fold of micro-moves.

Theory of operation. A pass has a token budget and goes through two lists: the running requests,
which it *extends* by some tokens each, and the waiting ones, which it *admits*. When a running
request finds no free blocks, somebody is *preempted* and the request tries again. Who is passed
over is *skipped*, for a named reason. Nothing else ever happens in a pass, so it is a fold:

    while moves := permitted(pass): pass = step(pass, moves[0])

`permitted` is where policy chooses; it returns every move that the policy allows, in order of
preference. `step` is where the machine's own guards stand, the same for every policy: a request
must be where the move says it is, tokens within the budget, blocks within the pool.

What a pass decides goes into a `Plan`, one entry a request: the tokens that the forward pass is
fed, and the block table it reads and writes through. The plan is then *in flight*.
"""

from __future__ import annotations

from attrs import evolve, frozen

from servespec import policy as choose
from servespec import pool as blocks
from servespec.chain import Namespace, Token, Tokens
from servespec.config import Config
from servespec.errors import require
from servespec.events import Admitted, Event, Preempted, Reason, Scheduled, Skipped
from servespec.policy import Phase, Policy, Publish
from servespec.pool import Blocks, Pool
from servespec.request import Request, peak
from servespec.rules import rule

PADDING: Token = -1
"""A draft that stands for none: it is scheduled, and always rejected (rule 36)."""


@frozen
class Planned:
    """What the worker gets for one request."""

    id: str
    namespace: Namespace
    start: int
    """Position of the first token."""
    tokens: Tokens
    """Text, then drafts."""
    drafts: Tokens
    table: Blocks
    new_blocks: int
    """Blocks taken from the queue for this pass: the last ones of the table."""
    yields: bool
    """The pass reaches the end of the text, so it samples a token (rule 28)."""
    admitted: bool
    was_prefilling: bool
    cancelled: bool = False
    """The request has left, or was sent back to wait: it is computed, its output is ignored."""


@frozen
class Plan:
    entries: tuple[Planned, ...] = ()
    """In order of scheduling."""
    deferred: tuple[Blocks, ...] = ()
    """Tables to release once this plan has run: it still writes to them."""

    def entry(self, request_id: str) -> Planned | None:
        """The entry of a live request."""
        found = (e for e in self.entries if e.id == request_id and not e.cancelled)
        return next(found, None)


@frozen
class State:
    """A serving loop between two actions. It holds no history."""

    pool: Pool
    waiting: tuple[Request, ...] = ()
    """In serving order."""
    running: tuple[Request, ...] = ()
    """In order of admission."""
    in_flight: tuple[Plan, ...] = ()
    """Plans made and not yet completed, oldest first."""

    @property
    def live(self) -> tuple[Request, ...]:
        return self.running + self.waiting

    def find(self, request_id: str) -> Request | None:
        """The live request with this id."""
        return next((r for r in self.live if r.id == request_id), None)


# --- moves ---------------------------------------------------------------------------------


@frozen
class Extend:
    """The running request at the cursor computes `tokens` more."""

    tokens: int


@frozen
class Admit:
    """The waiting request at the cursor begins to run, sharing `hits`."""

    hits: Blocks
    tokens: int
    drafts: Tokens


@frozen
class Preempt:
    """The running request at `victim` gives way to the one at the cursor, which wants `tokens`."""

    victim: int
    tokens: int


@frozen
class Skip:
    """The request at the cursor is passed over."""

    reason: Reason


@frozen
class Close:
    """The phase ends; `reason` says why, if somebody is left at the cursor."""

    reason: Reason | None = None


Move = Extend | Admit | Preempt | Skip | Close


@frozen
class Pass:
    """A pass under way: the state as it changes, and where the pass stands in it."""

    config: Config
    policy: Policy
    state: State
    phases: tuple[Phase, ...]
    """Parts of the pass still to do, the present one first."""
    tokens_left: int
    threshold: int
    """Most tokens for one request (rule 14)."""
    running_at_start: int
    cursor: int = 0
    """Position in the list of the present phase."""
    retry: int | None = None
    """Tokens wanted by the request at the cursor, while others make room for it (rule 17)."""
    preempted: int = 0
    entries: tuple[Planned, ...] = ()
    events: tuple[Event, ...] = ()

    @property
    def queue(self) -> tuple[Request, ...]:
        """The list that the present phase goes through."""
        return self.state.running if self.phases[0] is Phase.RUNNING else self.state.waiting

    @property
    def done(self) -> bool:
        """The cursor has reached the end of its list, or those admitted in this pass."""
        return self.cursor == len(self.queue) or any(
            entry.id == self.queue[self.cursor].id for entry in self.entries
        )


@rule("14", engine="Scheduler.schedule, its first lines")
def start(config: Config, policy: Policy, state: State) -> Pass:
    """A pass begins with the whole token budget. The long-prefill threshold is waived for a
    request that is alone."""
    alone = len(state.live) == 1
    return Pass(
        config,
        policy,
        state,
        choose.phases(policy),
        tokens_left=config.max_num_batched_tokens,
        threshold=0 if alone else config.long_prefill_token_threshold,
        running_at_start=len(state.running),
    )


def schedule(config: Config, policy: Policy, state: State) -> tuple[State, tuple[Event, ...]]:
    """Make a plan and put it in flight."""
    p = start(config, policy, state)
    while moves := permitted(p):
        p = step(p, moves[0])
    return evolve(p.state, in_flight=(*p.state.in_flight, Plan(p.entries))), p.events


# --- which moves policy permits ------------------------------------------------------------


def permitted(p: Pass) -> tuple[Move, ...]:
    """The moves that policy allows now, the preferred one first; none when the pass is over."""
    if not p.phases:
        return ()
    if p.done:
        return (Close(),)
    return (running_move(p) if p.phases[0] is Phase.RUNNING else admission_move(p),)


@rule("15", "17", engine="Scheduler.schedule, the running loop")
def running_move(p: Pass) -> Move:
    """Running requests come first, in list order, while tokens are left. One that finds no free
    blocks has somebody preempted and tries the same number of tokens again, until it finds them
    or has given way itself."""
    request = p.queue[p.cursor]
    if choose.shut_out_by_prefill(p.policy, any(e.admitted for e in p.entries)):
        return Skip(Reason.PREFILL)
    if p.tokens_left == 0:
        return Skip(Reason.NO_TOKENS)
    tokens = wanted(p, request) if p.retry is None else p.retry
    if tokens == 0:
        return Skip(Reason.MODEL_LENGTH)
    slots = slots_running(p.config, request, tokens)
    need = blocks.demand(p.state.pool, len(request.table), (), slots, p.config.block_size)
    if need <= len(p.state.pool.free):
        return Extend(tokens)
    victim = choose.victim(p.policy, p.state.running)
    return Skip(Reason.NO_BLOCKS) if victim is None else Preempt(victim, tokens)


@rule("16", engine="Scheduler.schedule, num_new_tokens")
def wanted(p: Pass, request: Request) -> int:
    """A running request wants the rest of its text and its drafts, at most the threshold, the
    tokens left, and what keeps its computed tokens below max_model_len; with nothing left to
    want it is passed over and keeps its blocks."""
    rest = request.length + len(request.drafts) - request.computed
    cap = choose.running_cap(p.policy, p.config.max_model_len) - request.computed
    return max(0, min(rest, p.threshold or rest, p.tokens_left, cap))


@rule("13", engine="KVCacheManager.allocate_slots, num_lookahead_tokens")
def slots_running(config: Config, request: Request, tokens: int) -> int:
    """A table reaches past the scheduled tokens only by the look-ahead slots, and never past
    max_model_len."""
    ahead = request.computed + tokens + config.num_lookahead_tokens
    return min(ahead, config.max_model_len)


@rule("24", "26", engine="Scheduler.schedule, the waiting loop")
def admission_move(p: Pass) -> Move:
    """While tokens and seats are left, the head of the waiting queue is looked up and admitted if
    it finds room. A refusal ends admissions: nobody is passed over, and nobody is preempted to
    admit another."""
    request = p.queue[p.cursor]
    shut = admissions_shut(p)
    if shut is not None:
        return Close(shut)
    offer = offer_for(p, request)
    if isinstance(offer, Admit):
        return offer
    return Skip(offer) if choose.passes_over(p.policy) else Close(offer)


@rule("23", engine="Scheduler.schedule, `if not preempted_reqs`")
def admissions_shut(p: Pass) -> Reason | None:
    """Admissions are shut after a preemption in the same pass, while a static batch runs, when
    the tokens are used up, and when max_num_seqs requests run."""
    shut = {
        Reason.PREEMPTION: choose.shut_by_preemption(p.policy, p.preempted),
        Reason.BATCH: choose.shut_by_batch(p.policy, p.running_at_start),
        Reason.NO_TOKENS: p.tokens_left == 0,
        Reason.NO_SEATS: len(p.state.running) >= p.config.max_num_seqs,
    }
    return next((reason for reason, true in shut.items() if true), None)


@rule("25", engine="Scheduler.schedule, the waiting loop; KVCacheManager.allocate_slots")
def offer_for(p: Pass, request: Request) -> Admit | Reason:
    """An admission computes what its hits leave of the text, capped by the threshold and cut to
    the tokens left, if prompts may be cut. It needs free blocks for these tokens, and a look
    shows that policy's larger part of the text would fit as well; while something runs, the
    watermark stays free besides."""
    config, policy, pool = p.config, p.policy, p.state.pool
    hits = blocks.match(pool, policy, request.keys, request.length, config.block_size)
    computed = computed_by(hits, request, config)
    tokens, drafts = request.length - computed, request.drafts
    if pads(p, computed, tokens):
        tokens, drafts = 1 + config.num_speculative_tokens, padding(config)
        if tokens > p.tokens_left:
            return Reason.PADDING
    tokens = min(tokens, p.threshold or tokens)
    if tokens > p.tokens_left and not policy.chunked_prefill:
        return Reason.NO_CHUNKS
    tokens = min(tokens, p.tokens_left)
    admit = Admit(hits, tokens, drafts)
    room = len(pool.free) - (config.watermark_blocks if p.state.running else 0)
    fits = room_needed(p, request, admit) <= room
    return admit if fits else Reason.NO_ROOM


def computed_by(hits: Blocks, request: Request, config: Config) -> int:
    """Rule 11: tokens that hits leave computed; the last one never is."""
    return min(len(hits) * config.block_size, request.length - 1)


def padding(config: Config) -> Tokens:
    """Drafts that stand for none."""
    return (PADDING,) * config.num_speculative_tokens


@rule("36", engine="Scheduler.schedule, padding of a uniform decode batch")
def pads(p: Pass, computed: int, tokens: int) -> bool:
    """With speculation, an admission of one token is padded to 1 + γ, if there is something to
    keep uniform with (a scheduled running request, or a hit), none of the scheduled running
    requests was still prefilling, and max_model_len leaves room. If the budget does not,
    admissions end."""
    gamma = p.config.num_speculative_tokens
    ran = [entry for entry in p.entries if not entry.admitted]
    return (
        p.policy.pad_first_decode
        and gamma > 0
        and tokens == 1
        and (bool(ran) or computed > 0)
        and not any(entry.was_prefilling for entry in ran)
        and computed + 1 + gamma + 1 <= p.config.max_model_len
    )


def room_needed(p: Pass, request: Request, admit: Admit) -> int:
    """Rule 12: free blocks that the admission needs, the larger of the demand of its first step
    and that of the look at more of the text, with what policy promises to those that run."""
    config, policy, pool = p.config, p.policy, p.state.pool
    first = blocks.demand(pool, 0, admit.hits, slots_admitted(p, request, admit), config.block_size)
    look = choose.slots_looked_at(
        policy,
        text=min(request.length, config.max_model_len),
        whole=peak(config, len(request.prompt), request.max_tokens),
    )
    more = blocks.demand(pool, 0, admit.hits, look, config.block_size)
    promised = choose.promised(
        policy,
        (
            blocks.missing(
                len(r.table), peak(config, len(r.prompt), r.max_tokens), config.block_size
            )
            for r in p.state.running
        ),
    )
    return max(first, more) + promised


def slots_admitted(p: Pass, request: Request, admit: Admit) -> int:
    """Token slots of the table at admission."""
    computed = computed_by(admit.hits, request, p.config)
    ahead = computed + admit.tokens + p.config.num_lookahead_tokens
    limit = p.config.max_model_len
    return choose.slots_at_admission(p.policy, min(ahead, limit), limit)


# --- what a move does ----------------------------------------------------------------------


def step(p: Pass, move: Move) -> Pass:
    """Carry out one move.

    Raises:
        ActionDisabled: a guard that holds for every engine is broken.
    """
    match move:
        case Extend():
            return extend(p, move)
        case Admit():
            return admit(p, move)
        case Preempt():
            return preempt(p, move)
        case Skip(reason):
            skipped = Skipped(p.queue[p.cursor].id, reason)
            return evolve(p, cursor=p.cursor + 1, retry=None, events=(*p.events, skipped))
        case Close(reason):
            left = () if reason is None else (Skipped(p.queue[p.cursor].id, reason),)
            return evolve(p, phases=p.phases[1:], cursor=0, events=p.events + left)


@rule("18", engine="Scheduler.schedule, the running loop")
def extend(p: Pass, move: Extend) -> Pass:
    """A running request that finds its blocks is scheduled, in order, and its tokens leave the
    budget."""
    request = p.queue[p.cursor]
    _within_budget(p, move.tokens)
    slots = slots_running(p.config, request, move.tokens)
    count = blocks.missing(len(request.table), slots, p.config.block_size)
    taken = blocks.extend(p.state.pool, count)
    grown = evolve(request, table=request.table + taken.blocks)
    rest = (*p.state.running[: p.cursor], *p.state.running[p.cursor + 1 :])
    state = State(taken.pool, p.state.waiting, rest, p.state.in_flight)
    moved = evolve(p, state=state, events=p.events + taken.events, cursor=p.cursor + 1, retry=None)
    return _plan(moved, p.cursor, grown, move.tokens, taken.blocks, admitted=False)


@rule("27", engine="Scheduler.schedule, the waiting loop")
def admit(p: Pass, move: Admit) -> Pass:
    """An admitted request leaves the waiting queue and goes to the end of the running list. Its
    hits begin its table and count as computed and published."""
    request = p.queue[p.cursor]
    _within_budget(p, move.tokens)
    require(
        len(p.state.running) < p.config.max_num_seqs,
        "Admit",
        "max_num_seqs requests run",
        "wait until one ends",
    )
    slots = slots_admitted(p, request, move)
    hits = blocks.acquire(p.state.pool, move.hits)
    count = blocks.missing(len(move.hits), slots, p.config.block_size)
    taken = blocks.extend(hits.pool, count)
    computed = computed_by(move.hits, request, p.config)
    table = move.hits + taken.blocks
    grown = evolve(
        request, table=table, computed=computed, published=len(move.hits), drafts=move.drafts
    )
    waiting = (*p.state.waiting[: p.cursor], *p.state.waiting[p.cursor + 1 :])
    state = State(taken.pool, waiting, p.state.running, p.state.in_flight)
    events = (*p.events, Admitted(request.id, computed, table), *taken.events)
    moved = evolve(p, state=state, events=events)
    place = len(p.state.running)
    return _plan(moved, place, grown, move.tokens, taken.blocks, admitted=True)


def _within_budget(p: Pass, tokens: int) -> None:
    require(
        0 < tokens <= p.tokens_left,
        "a pass",
        f"{tokens} tokens of {p.tokens_left} left in the budget",
        "schedule at least one token and no more than are left",
    )


@rule("28", "33", engine="Scheduler.schedule, Scheduler._update_after_schedule")
def _plan(
    p: Pass, place: int, request: Request, tokens: int, taken: Blocks, *, admitted: bool
) -> Pass:
    """C advances when a request is scheduled, before anything is computed; a token is sampled
    exactly if C then reaches the end of the text. Of its drafts those that C passes are used, the
    rest is lost."""
    end = request.computed + tokens
    used = request.drafts[: max(0, end - request.length)]
    entry = Planned(
        request.id,
        request.namespace,
        start=request.computed,
        tokens=request.text(request.computed, end) + used,
        drafts=used,
        table=request.table,
        new_blocks=len(taken),
        yields=end >= request.length,
        admitted=admitted,
        was_prefilling=request.prefilling,
    )
    ahead = evolve(request, computed=end, drafts=(), prefilling=not entry.yields)
    pool, known, stored = published(
        p.state.pool, p.policy, ahead, end, p.config, Publish.AT_SCHEDULE
    )
    running = (*p.state.running[:place], known, *p.state.running[place:])
    scheduled = Scheduled(request.id, tokens, len(used), taken)
    return evolve(
        p,
        state=State(pool, p.state.waiting, running, p.state.in_flight),
        tokens_left=p.tokens_left - tokens,
        entries=(*p.entries, entry),
        events=(*p.events, scheduled, *stored),
    )


def published(
    pool: Pool, policy: Policy, request: Request, tokens: int, config: Config, moment: Publish
) -> tuple[Pool, Request, tuple[Event, ...]]:
    """Rule 10: publish the full blocks of a request's first `tokens` tokens of known text, if this
    is the policy's moment for it."""
    done, upto = request.published, min(tokens // config.block_size, len(request.keys))
    if upto <= done or not choose.published_at(policy, moment):
        return pool, request, ()
    moved = blocks.publish(pool, request.table[done:upto], request.keys[done:upto])
    return moved.pool, evolve(request, published=upto), moved.events


@rule("21", "37", engine="Scheduler._preempt_request")
def preempt(p: Pass, move: Preempt) -> Pass:
    """A preempted request gives its table back, forgets what was computed and its drafts, keeps
    its output and waits again. If this pass had already scheduled it, it is scheduled no more
    and its tokens return to the budget, for those after the one that it gave way to."""
    require(
        0 <= move.victim < len(p.state.running),
        "Preempt",
        f"nobody runs at {move.victim}",
        "choose one of the running list",
    )
    victim = p.state.running[move.victim]
    given_back = sum(len(entry.tokens) for entry in p.entries if entry.id == victim.id)
    itself = move.victim == p.cursor
    return evolve(
        p,
        state=sent_back(p.state, p.policy, move.victim),
        entries=tuple(entry for entry in p.entries if entry.id != victim.id),
        tokens_left=p.tokens_left + given_back,
        cursor=p.cursor - (move.victim < p.cursor),
        retry=None if itself else move.tokens,
        preempted=p.preempted + 1,
        events=(*p.events, Preempted(victim.id)),
    )


def sent_back(state: State, policy: Policy, index: int) -> State:
    """Rule 21: the running request at `index` gives its table back and waits again."""
    victim = state.running[index]
    running = state.running[:index] + state.running[index + 1 :]
    waits = victim.waits
    place = choose.place_in_waiting(policy, state.waiting, waits, preempted=True)
    waiting = (*state.waiting[:place], waits, *state.waiting[place:])
    pool, in_flight = let_go(state.pool, policy, state.in_flight, victim)
    return State(pool, waiting, running, in_flight)


@rule("D", engine="Scheduler._free_blocks; deferred frees of vLLM with a connector")
def let_go(
    pool: Pool, policy: Policy, in_flight: tuple[Plan, ...], request: Request
) -> tuple[Pool, tuple[Plan, ...]]:
    """Who leaves, or is sent back, has its output ignored. Its table is released at once; a policy
    may hold it until the last step in flight that writes to it is done."""
    plans = list(in_flight)
    last = None
    for i, plan in enumerate(plans):
        if (mine := plan.entry(request.id)) is not None:
            gone = evolve(mine, cancelled=True)
            last = i
            plans[i] = evolve(plan, entries=tuple(gone if e is mine else e for e in plan.entries))
    if last is None or not choose.defers_release(policy):
        return blocks.release(pool, policy, request.table).pool, tuple(plans)
    plans[last] = evolve(plans[last], deferred=(*plans[last].deferred, request.table))
    return pool, tuple(plans)
