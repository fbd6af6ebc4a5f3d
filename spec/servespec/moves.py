"""Micro-moves of a scheduling pass: what each one is, and what it does.

Theory of operation. A `Pass` is a pass under way: the state as it changes, and a cursor in the
list that the pass is going through. A running request at the cursor is *extended* by some tokens,
a waiting one is *admitted*; a running request may be *preempted* to make room for the one at the
cursor; the request at the cursor may be *skipped*; a list may be *closed*. Nothing else happens
in a pass. `step` carries out one move, and here stand the guards that hold for every engine,
whatever its policy: the budget, the seats, the blocks.

How many token slots a request needs is said once (`slots_running`, `slots_admitted`), and used
for the check, the choice and the action.
"""

from __future__ import annotations

from attrs import evolve, frozen

from servespec import policy as choose
from servespec import pool as blocks
from servespec.chain import Tokens
from servespec.config import Config
from servespec.errors import require
from servespec.events import Admitted, Event, Preempted, Reason, Scheduled, Skipped
from servespec.plan import Planned, State, sent_back
from servespec.policy import Phase, Policy, Publish
from servespec.pool import Blocks, Pool
from servespec.request import Request
from servespec.rules import rule


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


# --- demand, in token slots ----------------------------------------------------------------


def computed_by(hits: Blocks, request: Request, config: Config) -> int:
    """Rule 11: tokens that hits leave computed; the last one never is."""
    return min(len(hits) * config.block_size, request.length - 1)


@rule("13", engine="KVCacheManager.allocate_slots, num_lookahead_tokens")
def slots_running(config: Config, request: Request, tokens: int) -> int:
    """A table reaches past the scheduled tokens only by the look-ahead slots, and never past
    max_model_len."""
    ahead = request.computed + tokens + config.num_lookahead_tokens
    return min(ahead, config.max_model_len)


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
    _within_budget(p, request, request.computed, request.drafts, move.tokens)
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
    hits begin its table and count as computed and published. A plan keeps the order of
    scheduling; where vLLM lists the requests that are new to the worker, those seen for the first
    time stand before those that come back, each in order of admission."""
    request = p.queue[p.cursor]
    computed = computed_by(move.hits, request, p.config)
    _within_budget(p, request, computed, move.drafts, move.tokens)
    found = tuple(p.state.pool.blocks[b].key for b in move.hits)
    require(
        found == request.keys[: len(found)] and len(move.drafts) <= p.config.num_speculative_tokens,
        "Admit",
        f"hits {move.hits} or drafts {move.drafts} are not of request {request.id!r}",
        "share blocks that carry its keys",
    )
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


def _within_budget(p: Pass, request: Request, computed: int, drafts: Tokens, tokens: int) -> None:
    require(
        0 < tokens <= p.tokens_left,
        "a pass",
        f"{tokens} tokens of {p.tokens_left} left in the budget",
        "schedule at least one token and no more than are left",
    )
    there = request.length + len(drafts) - computed
    require(
        tokens <= there,
        "a pass",
        f"{tokens} tokens of {there} that request {request.id!r} has to compute",
        "schedule text and drafts that exist",
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


@rule("35", engine="KVCacheManager.cache_blocks, Scheduler.update_from_output")
def published(
    pool: Pool, policy: Policy, request: Request, tokens: int, config: Config, moment: Publish
) -> tuple[Pool, Request, tuple[Event, ...]]:
    """What a request publishes are the full blocks of its known text: at scheduling up to C and the
    new tokens, after a step up to C, less what is still in flight. So a block that accepted
    drafts complete is findable with the output, also that of a request that ends by it."""
    done, upto = request.published, min(tokens // config.block_size, len(request.keys))
    if upto <= done or not choose.published_at(policy, moment):
        return pool, request, ()
    moved = blocks.publish(pool, request.table[done:upto], request.keys[done:upto])
    return moved.pool, evolve(request, published=upto), moved.events


@rule("20", "22", engine="Scheduler.schedule, the running loop")
def preempt(p: Pass, move: Preempt) -> Pass:
    """The victim may stand anywhere in the running list. If this pass had already scheduled it, it
    is scheduled no more and its tokens return to the budget, for those after the request that it
    gave way to. A request that gives way itself gets nothing, and the pass goes on with the one
    that moves into its place."""
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
