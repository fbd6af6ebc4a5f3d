"""One scheduling pass: a fold of micro-moves.

Theory of operation. A pass has a token budget and goes through two lists, the running requests
and the waiting ones. At every point policy *permits* some moves (`servespec.moves`), in order of
preference; an engine makes the first, until none is left:

    while moves := permitted(pass): pass = step(pass, moves[0])

This file says which moves are permitted. It looks at the pass and changes nothing.
"""

from __future__ import annotations

from attrs import evolve

from servespec import policy as choose
from servespec import pool as blocks
from servespec.chain import Tokens
from servespec.config import Config
from servespec.events import Event, Reason
from servespec.moves import (
    Admit,
    Close,
    Extend,
    Move,
    Pass,
    Preempt,
    Skip,
    computed_by,
    slots_admitted,
    slots_running,
    step,
)
from servespec.plan import PADDING, Plan, State
from servespec.policy import Phase, Policy
from servespec.request import Request, peak
from servespec.rules import rule


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
    shows that policy's larger part of the text would fit as well (rule 12)."""
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
    fits = room_needed(p, request, admit) <= len(pool.free)
    return admit if fits else Reason.NO_ROOM


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


def watermark(p: Pass) -> int:
    """Rule 12: blocks that an admission leaves free while something runs, be it since this pass;
    ⌊watermark · num_blocks⌋, the null block counted."""
    return p.config.watermark_blocks if p.state.running else 0


@rule("12", engine="KVCacheManager.allocate_slots, full_sequence_must_fit and the watermark")
def room_needed(p: Pass, request: Request, admit: Admit) -> int:
    """An admission needs the larger of two demands in free blocks: that of its first step, and that
    of the look at more of the text, which reserves nothing; besides, what policy promises to
    those that run, and the watermark, which is waived while nobody runs."""
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
    return max(first, more) + promised + watermark(p)
