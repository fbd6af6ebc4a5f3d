"""Marks: named situations that a check of a serving loop must have been in.

Theory of operation. Steps and properties counted say how long a run was, not where it has been:
a million steps in which nobody is preempted prove nothing about preemption. A mark is a situation
in the words of the field, such as "a look-up hits a block that nobody holds". `marks_of` reads the
marks of one step off its states and events; it never looks inside a pass, so it works as well for
an engine that is not the specification.

Some marks only exist under some policies or sizes. `Mark.needs` says which, as a condition that is
true whenever the mark is reached: under sizes and choices that do not meet it, a mark that is not
reached is no gap.

The moments inside a pass (who ran, what was in the queue and the index at the moment of an event)
come from `servespec.properties.folded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum

from attrs import frozen

from servespec import policy as choose
from servespec import pool as blocks
from servespec.actions import Submit
from servespec.chain import Namespace
from servespec.config import Config, usable_blocks
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
from servespec.machine import (
    Abort,
    Complete,
    Discard,
    ResetCache,
    Schedule,
    acceptable,
    fits_alone,
)
from servespec.plan import PADDING, Planned
from servespec.policy import (
    AfterPreemption,
    Batching,
    FreeWalk,
    HeadOfLine,
    HitCap,
    Impossible,
    Memory,
    Order,
    Policy,
    Publish,
    Readmission,
    Release,
    Reset,
    Sharing,
    StepMix,
    Victim,
)
from servespec.properties.base import Step
from servespec.properties.books import Moment
from servespec.properties.folded import folded
from servespec.request import Request


@frozen
class Needs:
    """A condition on sizes and choices without which a mark does not exist."""

    said: str
    met: Callable[[Config, Policy], bool]

    def __and__(self, other: Needs) -> Needs:
        said = ", ".join(s for s in (self.said, other.said) if s)
        return Needs(said, lambda c, p: self.met(c, p) and other.met(c, p))

    def __or__(self, other: Needs) -> Needs:
        said = f"{self.said}; or {other.said}"
        return Needs(said, lambda c, p: self.met(c, p) or other.met(c, p))


ANY = Needs("", lambda c, p: True)
SHARED = Needs("sharing", lambda c, p: p.sharing is Sharing.FULL_BLOCKS)
AT_SCHEDULE = SHARED & Needs("publish at schedule", lambda c, p: p.publish is Publish.AT_SCHEDULE)
HEAD_FIRST = SHARED & Needs(
    "tables are let go head first", lambda c, p: p.free_walk is FreeWalk.HEAD_FIRST
)
CAP = SHARED & Needs("hit cap", lambda c, p: p.hit_cap is HitCap.LAST_TOKEN)
NO_CAP = SHARED & Needs("no hit cap", lambda c, p: p.hit_cap is HitCap.NONE)
PREEMPTING = Needs(
    "victims, paged memory",
    lambda c, p: p.victim is not Victim.NONE and p.memory is Memory.PAGED,
)
BY_PRIORITY = PREEMPTING & Needs(
    "victims by priority", lambda c, p: p.victim is Victim.WORST_PRIORITY
)
GOING_ON = PREEMPTING & Needs(
    "admissions go on after a preemption",
    lambda c, p: p.after_preemption is AfterPreemption.GO_ON,
)
LAST_FIRST = PREEMPTING & Needs(
    "the last admitted gives way", lambda c, p: p.victim is Victim.LAST_ADMITTED
)
ORDERED = Needs("order by priority", lambda c, p: p.order is Order.PRIORITY)
DRAFTS = Needs("γ ≥ 1", lambda c, p: c.num_speculative_tokens > 0)
TWO_DRAFTS = Needs("γ ≥ 2", lambda c, p: c.num_speculative_tokens > 1)
CHUNKS = Needs("chunked prefill", lambda c, p: p.chunked_prefill)
THRESHOLD = Needs("a threshold", lambda c, p: c.long_prefill_token_threshold > 0)
WATERMARK = Needs("a watermark", lambda c, p: c.watermark_blocks > 0)
LOOKAHEAD = Needs("look-ahead", lambda c, p: c.num_lookahead_tokens > 0)
RESERVED = Needs("reserved memory", lambda c, p: p.memory is Memory.RESERVED)
DISCARDS = Needs("no block is published unwritten", lambda c, p: not p.publishes_unwritten)
DEFERS = Needs("deferred release", lambda c, p: p.release is Release.DEFERRED)
RESETS = Needs("resets that preempt", lambda c, p: p.reset is Reset.PREEMPT_FIRST)
BLOCKS_OF_ONE = SHARED & Needs("block size 1", lambda c, p: c.block_size == 1)


class Mark(Enum):
    """A situation: its meaning, and what it needs."""

    def __init__(self, meaning: str, needs: Needs = ANY) -> None:
        self.meaning = meaning
        self.needs = needs

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        # Between processes by name: the condition is code.
        return getattr, (Mark, self.name)

    # arrivals
    WHOLE_BLOCKS = "a prompt of whole blocks arrives"
    FILLS_POOL = "a prompt that needs every block of the pool arrives"
    PROMPT_TOO_LONG = "a prompt longer than max_model_len is refused"
    IMPOSSIBLE_QUEUED = (
        "a request that can never fit is queued",
        Needs("impossible requests are queued", lambda c, p: p.impossible is Impossible.QUEUE),
    )
    IMPOSSIBLE_REFUSED = (
        "a request that can never fit is refused",
        Needs("impossible requests are refused", lambda c, p: p.impossible is Impossible.REFUSE),
    )
    EQUAL_ARRIVALS = "a request arrives at the same moment as a living one"
    OVERTAKES = ("a request is queued before one that waited already", ORDERED)
    ID_REUSED_IN_FLIGHT = "an id comes back while a step of its former owner is in flight"

    # hits
    HIT_HELD = ("a look-up hits a block that somebody holds", SHARED)
    HIT_IDLE = ("a look-up hits a block that nobody holds", SHARED)
    HIT_SAME_PASS = ("a look-up hits a block published in the same pass", AT_SCHEDULE)
    HIT_AMONG_COPIES = ("a look-up hits a key that several blocks carry", SHARED)
    HIT_ENDS_INSIDE = ("a look-up hits some blocks of a text and misses the next", SHARED)
    CACHED_BUT_CAPPED = ("all blocks of a text are cached, the cap spares the last", CAP)
    CACHED_IN_PLACE = ("all of a text is cached, its last token recomputed in place", NO_CAP)
    RESUMED_HITS_OUTPUT = ("a resumed request hits blocks of its own output", SHARED)
    RESUMED_MISSES = ("a resumed request finds nothing of itself", PREEMPTING | RESETS)

    # the pool
    POOL_FULL = "a pass leaves no block free"
    EVICTION = ("a block with a key is evicted", SHARED)
    EVICTION_COPY_STAYS = ("a block is evicted while another carries its key", SHARED)
    EVICTION_OF_PARENT = ("a block is evicted while a block that continues it stays", HEAD_FIRST)
    EVICTION_SAME_PASS = (
        "a block is evicted in the pass that published it",
        AT_SCHEDULE & BY_PRIORITY,
    )
    DUPLICATE_STORED = ("a key is stored that another block carries", SHARED)
    SAME_TOKENS_APART = ("two namespaces hold the same first block", SHARED)
    SAME_SPELLING_APART = (
        "two namespaces that spell the same hold the same first block",
        SHARED,
    )
    ONE_TOKEN_BLOCK = ("a block of one token is stored", BLOCKS_OF_ONE)
    DECODE_TAKES_BLOCK = "a decode takes a block"
    SHARED_OUTLIVES = ("who leaves holds a block that another goes on holding", SHARED)

    # preemption
    PREEMPTS_DECODE = ("a decode is preempted", PREEMPTING)
    PREEMPTS_CHUNK = ("a request is preempted inside its prompt", PREEMPTING & (CHUNKS | DISCARDS))
    PREEMPTS_ITSELF = ("a request gives way to itself", PREEMPTING)
    PREEMPTS_SCHEDULED = ("a victim was already scheduled in the pass", BY_PRIORITY)
    GIVEN_BACK_SPENT = (
        "tokens that a scheduled victim gave back are spent in the pass",
        BY_PRIORITY,
    )
    PREEMPTS_DRAFTS = ("a victim loses its drafts", PREEMPTING & DRAFTS)
    PREEMPTS_BETTER = ("a victim has a better priority than who makes it give way", LAST_FIRST)
    PREEMPTS_SEVERAL = ("several give way in one pass", PREEMPTING)
    ADMITTED_SAME_PASS = ("somebody is admitted in a pass in which somebody gave way", GOING_ON)
    SEATS_END_SAME_PASS = ("seats end in a pass in which somebody gave way", GOING_ON)
    TOKENS_END_SAME_PASS = ("tokens end in a pass in which somebody gave way", PREEMPTING)
    READMITTED_SAME_PASS = ("a victim is admitted again in the same pass", GOING_ON)
    REQUEUED_BEHIND = (
        "a victim waits behind others",
        PREEMPTING
        & Needs(
            "victims go to the tail, or by priority",
            lambda c, p: p.order is Order.PRIORITY or p.readmission is Readmission.TAIL,
        ),
    )

    # a pass
    EMPTY_PASS = "a pass has nobody to serve"
    STARVED_PASS = "a pass schedules nobody, though somebody is there"
    CHUNK = ("a pass computes a part of a prompt and yields no token", CHUNKS | DISCARDS)
    LAST_CHUNK = "a pass ends a prompt begun in an earlier one"
    DECODE_AND_PREFILL = "a decode and a prefill share a pass"
    BUDGET_SPENT = "a pass uses its token budget exactly up"
    SEATS_TAKEN = "max_num_seqs requests run"
    THRESHOLD_CUTS = ("the long-prefill threshold cuts a prompt", THRESHOLD)
    THRESHOLD_WAIVED = ("the threshold is waived for a request that is alone", THRESHOLD)
    DRAFTS_UNUSED = ("a pass has no tokens left for some drafts of a request", DRAFTS)
    LOOKAHEAD_BLOCK = ("a block is taken for look-ahead slots alone", LOOKAHEAD)
    RESERVED_AHEAD = ("an admission reserves blocks that its text does not need yet", RESERVED)
    PADDED_FIRST_DECODE = (
        "the first decode of an admission is padded",
        DRAFTS & Needs("padding", lambda c, p: p.pad_first_decode),
    )
    PASSED_OVER = (
        "somebody is admitted from behind a refused one",
        Needs("the head is passed over", lambda c, p: p.head_of_line is HeadOfLine.SKIP),
    )
    WATERMARK_REFUSES = ("only the watermark keeps a request out", WATERMARK)

    # passed over, by reason
    SKIPPED_NO_TOKENS = "passed over: the token budget is used up"
    SKIPPED_MODEL_LENGTH = "passed over: max_model_len leaves nothing to compute"
    SKIPPED_NO_BLOCKS = (
        "passed over: no free blocks, and nobody gives way",
        Needs("no victims", lambda c, p: p.victim is Victim.NONE),
    )
    SKIPPED_NO_ROOM = "passed over: too few free blocks to admit it"
    SKIPPED_NO_SEATS = "passed over: max_num_seqs requests run"
    SKIPPED_PREEMPTION = (
        "passed over: somebody was preempted in this pass",
        PREEMPTING
        & Needs(
            "nobody is admitted after a preemption",
            lambda c, p: p.after_preemption is AfterPreemption.ADMIT_NOBODY,
        ),
    )
    SKIPPED_BATCH = (
        "passed over: a static batch is running",
        Needs("static batching", lambda c, p: p.batching is Batching.STATIC),
    )
    SKIPPED_PREFILL = (
        "passed over: this step is all prefill",
        Needs("prefill first", lambda c, p: p.step_mix is StepMix.PREFILL_FIRST),
    )
    SKIPPED_NO_CHUNKS = (
        "passed over: its prompt may not be cut",
        Needs("no chunked prefill", lambda c, p: not p.chunked_prefill),
    )
    SKIPPED_PADDING = (
        "passed over: its padded first decode exceeds the tokens left",
        DRAFTS & Needs("padding", lambda c, p: p.pad_first_decode),
    )

    # outcomes
    ENDS_BY_STOP = "a request ends by a stop token"
    ENDS_BY_MAX_TOKENS = "a request ends with max_tokens of output"
    ENDS_BY_MODEL_LENGTH = "a request ends at max_model_len"
    END_CUTS_DRAFTS = ("the end of a request cuts accepted drafts off", DRAFTS)
    STOP_CUTS_DRAFTS = ("a stop token cuts accepted drafts off", DRAFTS)
    SEVERAL_END = "several requests end in one step"
    DRAFTS_ALL = ("all drafts of a request are accepted", DRAFTS)
    DRAFTS_SOME = ("some drafts are accepted, some are not", TWO_DRAFTS)
    DRAFTS_NONE = ("all drafts of a request are rejected", DRAFTS)
    BLOCK_BY_DRAFTS = ("accepted drafts complete a block", SHARED & DRAFTS)
    OUTPUT_IGNORED = "the output of a request that has left, or waits again, is ignored"
    OUTPUT_OF_NAMESAKE = "the output of a former owner of a living id is ignored"
    DEFERRED = ("a table is held until the step in flight is done", DEFERS)
    DEFERRED_DONE = ("a table that was held for a step in flight is released", DEFERS)

    # discards
    DISCARDS_ADMISSION = ("a step that admitted somebody is discarded", DISCARDS)
    DISCARDS_PREFILL = ("a further step of a prompt is discarded", DISCARDS)
    DISCARDS_DECODE = ("a decode is discarded", DISCARDS)
    DISCARDS_LEFT = ("a step of a request that has left is discarded", DISCARDS)
    DISCARD_GIVES_BACK = (
        "a discarded step gives blocks back",
        DISCARDS & Needs("paged memory", lambda c, p: p.memory is Memory.PAGED),
    )

    # aborts and resets
    ABORTS_WAITING = "a request that waits is aborted"
    ABORTS_PREEMPTED = "a request that waits with output is aborted"
    ABORTS_PREFILL = "a request is aborted inside its prompt"
    ABORTS_DECODE = "a request is aborted between two decodes"
    ABORTS_IN_FLIGHT = "a request is aborted while its step is in flight"
    ABORTS_TWICE = "a request that was aborted in flight is aborted again"
    ABORTS_NOBODY = "an abort names nobody"
    RESET_DONE = ("a reset forgets cached blocks", SHARED)
    RESET_REFUSED = "a reset is refused because blocks are held"
    RESET_PREEMPTS = ("a reset preempts what runs", RESETS)
    RESET_IN_FLIGHT = ("a reset preempts what is in flight", RESETS)


SKIPPED = {
    Reason.NO_TOKENS: Mark.SKIPPED_NO_TOKENS,
    Reason.MODEL_LENGTH: Mark.SKIPPED_MODEL_LENGTH,
    Reason.NO_BLOCKS: Mark.SKIPPED_NO_BLOCKS,
    Reason.NO_ROOM: Mark.SKIPPED_NO_ROOM,
    Reason.NO_SEATS: Mark.SKIPPED_NO_SEATS,
    Reason.PREEMPTION: Mark.SKIPPED_PREEMPTION,
    Reason.BATCH: Mark.SKIPPED_BATCH,
    Reason.PREFILL: Mark.SKIPPED_PREFILL,
    Reason.NO_CHUNKS: Mark.SKIPPED_NO_CHUNKS,
    Reason.PADDING: Mark.SKIPPED_PADDING,
}


ENDS_SAME_PASS = {
    Reason.NO_SEATS: Mark.SEATS_END_SAME_PASS,
    Reason.NO_TOKENS: Mark.TOKENS_END_SAME_PASS,
}
"""What is counted when somebody gives way, and then ends."""


def possible(config: Config, policy: Policy) -> tuple[Mark, ...]:
    """The marks whose needs these sizes and choices meet."""
    return tuple(mark for mark in Mark if mark.needs.met(config, policy))


def marks_of(step: Step) -> frozenset[Mark]:
    """Every mark that this step reaches."""
    return frozenset(_marks(step))


def _marks(step: Step) -> Iterator[Mark]:
    match step.action:
        case Submit():
            yield from _arrival(step, step.action)
        case Schedule():
            yield from _plan(step)
            yield from _pass(step)
        case Complete():
            yield from _outcome(step, step.action)
            yield from _stored(step)
            yield from _left(step)
        case Discard():
            yield from _discard(step)
        case Abort():
            yield from _abort(step, step.action)
            yield from _left(step)
        case ResetCache():
            yield from _reset(step)


def _having(found: dict[Mark, bool]) -> Iterator[Mark]:
    return (mark for mark, true in found.items() if true)


# --- arrivals ------------------------------------------------------------------------------


def _arrival(step: Step, submit: Submit) -> Iterator[Mark]:
    machine, before = step.machine, step.before
    config, size = machine.config, len(submit.prompt)
    queued = any(isinstance(e, Submitted) for e in step.events)
    request = step.after.find(submit.id)
    if not queued or request is None:
        too_long = size > config.max_model_len
        yield Mark.PROMPT_TOO_LONG if too_long else Mark.IMPOSSIBLE_REFUSED
        return
    plans = before.in_flight
    yield from _having(
        {
            Mark.WHOLE_BLOCKS: size % config.block_size == 0,
            Mark.FILLS_POOL: config.blocks_for(size) == usable_blocks(config, machine.policy),
            Mark.IMPOSSIBLE_QUEUED: not fits_alone(machine, submit),
            Mark.EQUAL_ARRIVALS: any(r.arrival == request.arrival for r in before.live),
            Mark.OVERTAKES: step.after.waiting[-1] is not request,
            Mark.ID_REUSED_IN_FLIGHT: any(e.id == submit.id for p in plans for e in p.entries),
        }
    )


# --- a pass --------------------------------------------------------------------------------


def _plan(step: Step) -> Iterator[Mark]:
    """What the plan as a whole shows."""
    config, entries = step.machine.config, step.after.in_flight[-1].entries
    prefills = [e for e in entries if e.admitted or e.was_prefilling]
    spent = sum(len(e.tokens) for e in entries)
    yield from _having(
        {
            Mark.EMPTY_PASS: not step.before.live,
            Mark.STARVED_PASS: bool(step.before.live) and not entries,
            Mark.DECODE_AND_PREFILL: 0 < len(prefills) < len(entries),
            Mark.BUDGET_SPENT: spent == config.max_num_batched_tokens,
            Mark.SEATS_TAKEN: len(step.after.running) == config.max_num_seqs,
            Mark.POOL_FULL: not step.after.pool.free,
        }
    )
    for entry in entries:
        yield from _entry(step, entry)


def _entry(step: Step, entry: Planned) -> Iterator[Mark]:
    config, tokens = step.machine.config, len(entry.tokens)
    prefill = entry.admitted or entry.was_prefilling
    beyond = len(entry.table) - config.blocks_for(entry.start + tokens)
    threshold, request = config.long_prefill_token_threshold, step.before.find(entry.id)
    ready = 0 if entry.admitted or request is None else len(request.drafts)
    yield from _having(
        {
            Mark.CHUNK: not entry.yields,
            Mark.LAST_CHUNK: entry.was_prefilling and not entry.admitted and entry.yields,
            Mark.DECODE_TAKES_BLOCK: not prefill and entry.new_blocks > 0,
            Mark.THRESHOLD_CUTS: prefill and tokens == threshold and not entry.yields,
            Mark.THRESHOLD_WAIVED: 0 < threshold < tokens,
            Mark.DRAFTS_UNUSED: len(entry.drafts) < ready,
            Mark.LOOKAHEAD_BLOCK: 0 < beyond <= entry.new_blocks
            and LOOKAHEAD.met(config, step.machine.policy),
            Mark.RESERVED_AHEAD: beyond > 0 and RESERVED.met(config, step.machine.policy),
            Mark.PADDED_FIRST_DECODE: PADDING in entry.drafts,
        }
    )


def _pass(step: Step) -> Iterator[Mark]:
    """What happens at each moment of the pass."""
    handled: dict[str, bool] = {}  # who had its turn → and was scheduled
    stored: set[int] = set()
    victims: list[str] = []
    tokens: dict[str, int] = {}  # who was scheduled → tokens
    given_back = 0
    for m in folded(step).moments:
        match m.event:
            case Admitted():
                yield from _admission(step, m, m.event, stored, victims)
            case Scheduled(id, count):
                handled[id] = True
                tokens[id] = count
            case Skipped(id, reason):
                handled[id] = False
                yield SKIPPED[reason]
                if victims and reason in ENDS_SAME_PASS:
                    yield ENDS_SAME_PASS[reason]
                if reason is Reason.NO_ROOM and _only_watermark(step, id):
                    yield Mark.WATERMARK_REFUSES
            case Preempted(id):
                victims.append(id)
                given_back += tokens.pop(id, 0)
                yield from _preemption(step, m, id, handled)
            case BlockStored(block):
                stored.add(block)
                yield from _storing(m, m.event)
            case BlockRemoved(block):
                yield from _eviction(m, m.event)
                if block in stored:
                    yield Mark.EVICTION_SAME_PASS
    if len(victims) > 1:
        yield Mark.PREEMPTS_SEVERAL
    if sum(tokens.values()) + given_back > step.machine.config.max_num_batched_tokens:
        yield Mark.GIVEN_BACK_SPENT
    places = {r.id: at for at, r in enumerate(step.after.waiting)}
    if any(places.get(id, 0) > 0 for id in victims[:1]) and len(victims) == 1:
        yield Mark.REQUEUED_BEHIND


def _admission(
    step: Step, m: Moment, event: Admitted, stored: set[int], victims: list[str]
) -> Iterator[Mark]:
    machine, request = step.machine, step.before.find(event.id)
    if request is None:
        return
    hits = event.blocks[: m.hits]
    limit = choose.hit_limit(machine.policy, request.length, machine.config.block_size)
    copies = (m.index.get(key, ()) for key in request.keys[: m.hits])
    full = len(request.keys) * machine.config.block_size == request.length
    cached = full and all(m.index.get(key) for key in request.keys)
    skipped = {e.id for e in step.events if isinstance(e, Skipped)}
    ahead = step.before.waiting[: _place(step.before.waiting, event.id)]
    yield from _having(
        {
            Mark.HIT_IDLE: any(b in m.queue for b in hits),
            Mark.HIT_HELD: any(b not in m.queue for b in hits),
            Mark.HIT_SAME_PASS: not stored.isdisjoint(hits),
            Mark.HIT_AMONG_COPIES: any(len(c) > 1 for c in copies),
            Mark.HIT_ENDS_INSIDE: 0 < m.hits < min(limit, len(request.keys)),
            Mark.CACHED_BUT_CAPPED: cached and m.hits < len(request.keys),
            Mark.CACHED_IN_PLACE: cached and m.hits == len(request.keys) > 0,
            Mark.RESUMED_HITS_OUTPUT: event.hit_tokens > len(request.prompt),
            Mark.RESUMED_MISSES: bool(request.output) and not hits,
            Mark.ADMITTED_SAME_PASS: bool(victims),
            Mark.READMITTED_SAME_PASS: event.id in victims,
            Mark.PASSED_OVER: any(r.id in skipped for r in ahead),
        }
    )


def _place(requests: tuple[Request, ...], request_id: str) -> int:
    return next((i for i, r in enumerate(requests) if r.id == request_id), 0)


def _only_watermark(step: Step, request_id: str) -> bool:
    """Whether a request that was refused last would fit without the watermark."""
    request, policy, config = step.after.find(request_id), step.machine.policy, step.machine.config
    last = isinstance(step.events[-1], Skipped) and step.events[-1].id == request_id
    if request is None or not last or choose.phases(policy)[-1] is not choose.Phase.ADMISSION:
        return False
    pool, size = step.after.pool, config.block_size
    hits = blocks.match(pool, policy, request.keys, request.length, size)
    whole = config.max_model_len if RESERVED.met(config, policy) else request.length
    # A bound from above: what the whole text needs, and a whole request of every running one.
    promised = choose.promised(
        policy, (config.blocks_for(config.max_model_len) for _ in step.after.running)
    )
    ahead = request.max_tokens + config.num_speculative_tokens + config.num_lookahead_tokens
    slots = max(whole, min(request.length + ahead, config.max_model_len))
    return blocks.demand(pool, 0, hits, slots, size) + promised <= len(pool.free)


def _preemption(step: Step, m: Moment, victim: str, handled: dict[str, bool]) -> Iterator[Mark]:
    gone = next((r for r in m.running if r.id == victim), None)
    asking = next((r for r in m.running if r.id not in handled), None)
    before = step.before.find(victim)
    if gone is None or asking is None or before is None:
        return
    yield from _having(
        {
            Mark.PREEMPTS_DECODE: not before.prefilling,
            Mark.PREEMPTS_CHUNK: before.prefilling and before.computed > 0,
            Mark.PREEMPTS_ITSELF: asking is gone,
            Mark.PREEMPTS_SCHEDULED: handled.get(victim, False),
            Mark.PREEMPTS_DRAFTS: bool(before.drafts),
            Mark.PREEMPTS_BETTER: gone.priority < asking.priority,
        }
    )


def _eviction(m: Moment, event: BlockRemoved) -> Iterator[Mark]:
    copies = len(m.index.get(event.key, ()))
    orphans = any(key.parent is event.key and held for key, held in m.index.items())
    yield Mark.EVICTION
    if copies > 1:
        yield Mark.EVICTION_COPY_STAYS
    elif orphans:
        yield Mark.EVICTION_OF_PARENT


def _storing(m: Moment, event: BlockStored) -> Iterator[Mark]:
    key = event.key
    yield from _having(
        {
            Mark.DUPLICATE_STORED: bool(m.index.get(key)),
            Mark.ONE_TOKEN_BLOCK: len(key.tokens) == 1,
        }
    )
    if key.parent is not None:
        return
    apart = [
        other.namespace
        for other, held in m.index.items()
        if held and other.parent is None and other is not key and other.tokens == key.tokens
    ]
    if apart:
        yield Mark.SAME_TOKENS_APART
    if any(_spelt(other) == _spelt(key.namespace) for other in apart):
        yield Mark.SAME_SPELLING_APART


def _spelt(namespace: Namespace) -> str:
    return (namespace.adapter or "") + (namespace.salt or "")


# --- outcomes ------------------------------------------------------------------------------


def _outcome(step: Step, complete: Complete) -> Iterator[Mark]:
    plan, config = step.before.in_flight[0], step.machine.config
    sampled = {output.id: output.tokens for output in complete.outputs}
    delivered = {e.id: e.tokens for e in step.events if isinstance(e, Delivered)}
    ended = [e for e in step.events if isinstance(e, Finished)]
    for entry in plan.entries:
        if entry.cancelled:
            yield Mark.OUTPUT_IGNORED
            if any(r.id == entry.id for r in step.before.live):
                yield Mark.OUTPUT_OF_NAMESAKE
        elif entry.yields and acceptable(entry):
            accepted = len(sampled[entry.id]) - 1
            yield _accepted(accepted, len(entry.drafts))
    for e in ended:
        request, tokens = step.before.find(e.id), delivered.get(e.id, ())
        if request is None:
            continue
        cut = len(tokens) < len(sampled.get(e.id, ()))
        whole = len(request.output) + len(tokens) >= request.max_tokens
        yield from _having(
            {
                Mark.ENDS_BY_STOP: e.reason is Reason.STOP,
                Mark.ENDS_BY_MAX_TOKENS: e.reason is Reason.LENGTH and whole,
                Mark.ENDS_BY_MODEL_LENGTH: e.reason is Reason.LENGTH
                and request.length + len(tokens) >= config.max_model_len,
                Mark.END_CUTS_DRAFTS: cut and e.reason is Reason.LENGTH,
                Mark.STOP_CUTS_DRAFTS: cut and e.reason is Reason.STOP,
            }
        )
    if len(ended) > 1:
        yield Mark.SEVERAL_END
    if plan.deferred:
        yield Mark.DEFERRED_DONE


def _accepted(accepted: int, proposed: int) -> Mark:
    if accepted == proposed:
        return Mark.DRAFTS_ALL
    return Mark.DRAFTS_SOME if accepted else Mark.DRAFTS_NONE


def _stored(step: Step) -> Iterator[Mark]:
    """Blocks published after a step; one that ends behind the text that was known before it was
    completed by accepted drafts."""
    if not any(isinstance(e, BlockStored) for e in step.events):
        return
    for m in folded(step).moments:
        if isinstance(m.event, BlockStored):
            yield from _storing(m, m.event)
            holder = next((r.id for r in m.running if m.event.block in r.table), "")
            owner = step.before.find(holder)
            if owner is not None and m.event.key.length > owner.length:
                yield Mark.BLOCK_BY_DRAFTS


def _left(step: Step) -> Iterator[Mark]:
    """What those who leave by this step leave behind."""
    held, plans = step.after.pool.blocks, step.after.in_flight
    for request_id in _ids(step.events):
        request = step.before.find(request_id)
        if request is None:
            continue
        if any(request.table and request.table in plan.deferred for plan in plans):
            yield Mark.DEFERRED
        elif any(held[b].ref_count > 0 for b in request.table):
            yield Mark.SHARED_OUTLIVES


def _ids(events: Iterable[Event]) -> tuple[str, ...]:
    return tuple(e.id for e in events if isinstance(e, Finished))


# --- discards, aborts, resets --------------------------------------------------------------


def _discard(step: Step) -> Iterator[Mark]:
    paged = step.machine.policy.memory is Memory.PAGED
    for entry in step.before.in_flight[-1].entries:
        if entry.cancelled:
            yield Mark.DISCARDS_LEFT
        elif entry.admitted:
            yield Mark.DISCARDS_ADMISSION
        else:
            yield Mark.DISCARDS_PREFILL if entry.was_prefilling else Mark.DISCARDS_DECODE
        if paged and entry.new_blocks and not entry.cancelled:
            yield Mark.DISCARD_GIVES_BACK


def _abort(step: Step, abort: Abort) -> Iterator[Mark]:
    before, request = step.before, step.before.find(abort.id)
    entries = [e for plan in before.in_flight for e in plan.entries if e.id == abort.id]
    if request is None:
        yield Mark.ABORTS_TWICE if entries else Mark.ABORTS_NOBODY
    elif any(request is r for r in before.waiting):
        yield Mark.ABORTS_PREEMPTED if request.output else Mark.ABORTS_WAITING
    elif any(not e.cancelled for e in entries):
        yield Mark.ABORTS_IN_FLIGHT
    else:
        yield Mark.ABORTS_PREFILL if request.prefilling else Mark.ABORTS_DECODE


def _reset(step: Step) -> Iterator[Mark]:
    preempted = any(isinstance(e, Preempted) for e in step.events)
    cleared = any(isinstance(e, CacheCleared) for e in step.events)
    flying = any(not e.cancelled for plan in step.before.in_flight for e in plan.entries)
    yield from _having(
        {
            Mark.RESET_DONE: cleared and bool(step.before.pool.index.copies),
            Mark.RESET_REFUSED: any(isinstance(e, Refused) for e in step.events),
            Mark.RESET_PREEMPTS: preempted,
            Mark.RESET_IN_FLIGHT: preempted and flying,
        }
    )
