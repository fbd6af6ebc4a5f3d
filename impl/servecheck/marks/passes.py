"""Marks of a scheduling pass: of its plan as a whole, and of each moment in it."""

from __future__ import annotations

from collections.abc import Iterator

from servecheck.marks.blocks import eviction, storing
from servecheck.marks.mark import ENDS_SAME_PASS, SKIPPED, Mark, having
from servecheck.marks.needs import LOOKAHEAD, RESERVED
from servespec import policy as choose
from servespec import pool as blocks
from servespec.events import (
    Admitted,
    BlockRemoved,
    BlockStored,
    Preempted,
    Reason,
    Scheduled,
    Skipped,
)
from servespec.plan import PADDING, Planned
from servespec.properties.base import Step
from servespec.properties.books import Moment
from servespec.properties.folded import folded
from servespec.request import Request


def plan(step: Step) -> Iterator[Mark]:
    """What the plan as a whole shows."""
    config, entries = step.machine.config, step.after.in_flight[-1].entries
    prefills = [e for e in entries if e.admitted or e.was_prefilling]
    spent = sum(len(e.tokens) for e in entries)
    yield from having(
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
    yield from having(
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


def in_pass(step: Step) -> Iterator[Mark]:
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
                yield from storing(m, m.event)
            case BlockRemoved(block):
                yield from eviction(m, m.event)
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
    yield from having(
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
    yield from having(
        {
            Mark.PREEMPTS_DECODE: not before.prefilling,
            Mark.PREEMPTS_CHUNK: before.prefilling and before.computed > 0,
            Mark.PREEMPTS_ITSELF: asking is gone,
            Mark.PREEMPTS_SCHEDULED: handled.get(victim, False),
            Mark.PREEMPTS_DRAFTS: bool(before.drafts),
            Mark.PREEMPTS_BETTER: gone.priority < asking.priority,
        }
    )
