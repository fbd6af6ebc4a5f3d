"""Properties of every transition: content, the free queue, and what a pass decides."""

from __future__ import annotations

from itertools import takewhile

from attrs import evolve

from servespec import policy as choose
from servespec import pool as blocks
from servespec.config import Config
from servespec.events import (
    Admitted,
    BlockRemoved,
    BlockStored,
    Preempted,
    Reason,
    Refused,
    Scheduled,
    Skipped,
)
from servespec.machine import Abort, Complete, Schedule, written
from servespec.plan import Planned
from servespec.policy import Batching, Policy, StepMix, Victim
from servespec.properties.base import Fall, Falls, Outcome, Step, step_property, verdict
from servespec.properties.fold import Moment, folded
from servespec.properties.states import UNSCHEDULED, own_text
from servespec.request import Request


def planned(step: Step) -> tuple[Planned, ...] | None:
    """The plan that this step has made, if it is a Schedule."""
    return step.after.in_flight[-1].entries if isinstance(step.action, Schedule) else None


# --- content -------------------------------------------------------------------------------


@step_property("CON-1r", evolve(UNSCHEDULED, trace="CON-1r.jsonl"))
def reads_what_was_written(step: Step) -> Outcome:
    """All that a pass reads was written before it or in it: the last slot that it writes for a
    request holds the request's own text, and with it, link by link, all that was read."""
    if not isinstance(step.action, Complete):
        return verdict(False, None)
    plan, size = step.before.in_flight[0], step.machine.config.block_size
    pool = written(step.machine, step.before.pool, plan)
    live = [e for e in plan.entries if not e.cancelled]
    for e in live:
        request = step.before.find(e.id)
        last = e.start + len(e.tokens) - 1
        own = () if request is None else request.text(0, e.start) + e.tokens
        if blocks.read(pool, size, e.table, last) is not own_text(e.namespace, own)[last]:
            return Fall(
                f"the pass of {e.id} over positions {e.start} to {last} read something else"
            )
    return verdict(bool(live), None)


@step_property("CON-2")
def hit_is_longest_prefix(step: Step) -> Outcome:
    """A hit is the longest cached prefix under the cap, and each block of it is the copy that
    policy names."""
    admitted = False
    for m in folded(step).moments:
        if not isinstance(m.event, Admitted):
            continue
        admitted = True
        problem = _wrong_hit(step, m, m.event)
        if problem:
            return Fall(f"{m.event.id}: {problem}")
    return verdict(admitted, None)


def _wrong_hit(step: Step, m: Moment, event: Admitted) -> str | None:
    request = step.before.find(event.id)
    if request is None:
        return "was admitted and never waited"
    size, policy = step.machine.config.block_size, step.machine.policy
    longest = shared_prefix(step, m, request)
    if m.hits != longest:
        return f"{m.hits} blocks are shared, {longest} could be"
    if event.hit_tokens != min(longest * size, request.length - 1):
        return f"{longest} blocks of {size} are no {event.hit_tokens} tokens"
    for b, key in zip(event.blocks, request.keys[:longest], strict=False):
        if b != choose.copy_found(policy, m.index[key]):
            return f"block {b} of {m.index[key]} answered for {key!r}"
    return None


# --- the free queue ------------------------------------------------------------------------


@step_property("LRU-1")
def head_of_queue_is_taken(step: Step) -> Outcome:
    """Blocks are taken from the head of the free queue, in order; hits do not count as taken."""
    took = False
    for m in folded(step).moments:
        if isinstance(m.event, Scheduled) and m.event.new_blocks:
            took = True
            if m.event.new_blocks != m.queue[: len(m.event.new_blocks)]:
                return Fall(f"{m.event.id} took {m.event.new_blocks}, the queue was {m.queue}")
    return verdict(took, None)


@step_property("LRU-2")
def touched_leave_and_evicted_are_forgotten(step: Step) -> Outcome:
    """A block that is hit leaves the free queue, and an evicted key leaves the index, in the same
    transition."""
    stored = {(e.block, e.key) for e in step.events if isinstance(e, BlockStored)}
    free, true = set(step.after.pool.free), False
    for event in step.events:
        match event:
            case Admitted(id, _, table):
                true = True
                if back := free & set(table):
                    return Fall(f"blocks {sorted(back)} of {id} are in the free queue")
            case BlockRemoved(block, key):
                true = True
                copies = step.after.pool.index.copies.get(key, ())
                if block in copies and (block, key) not in stored:
                    return Fall(f"block {block} still answers to {key!r}")
    return verdict(true, None)


@step_property("LRU-3")
def queue_keeps_its_order(step: Step) -> Outcome:
    """After a release the free queue is [un-hashed blocks, by policy] + old order + [blocks with
    keys, in the order of the walk]; nothing else moves."""
    queue = folded(step).queue
    if queue != step.after.pool.free:
        return Fall(f"the queue is {step.after.pool.free}, not {queue}")
    return verdict(step.before.pool.free != step.after.pool.free, None)


# --- a pass --------------------------------------------------------------------------------


@step_property("BUD-1")
def budget_is_kept(step: Step) -> Outcome:
    """A pass schedules at most the token budget, at most max_num_seqs requests run, and none is
    scheduled twice."""
    plan = planned(step)
    if plan is None:
        return verdict(False, None)
    config = step.machine.config
    total = sum(len(e.tokens) for e in plan)
    if total > config.max_num_batched_tokens:
        return Fall(f"{total} tokens of {config.max_num_batched_tokens}")
    if len(step.after.running) > config.max_num_seqs:
        return Fall(f"{len(step.after.running)} requests run, at most {config.max_num_seqs} may")
    if len({e.id for e in plan}) != len(plan):
        return Fall("a request is scheduled twice")
    return verdict(bool(plan), None)


def _drafts_eat_budget(config: Config, policy: Policy) -> bool:
    return config.num_speculative_tokens > 0


def _prefill_first(config: Config, policy: Policy) -> bool:
    return policy.step_mix is StepMix.PREFILL_FIRST


@step_property(
    "BUD-2",
    Falls(
        under=_drafts_eat_budget,
        when="drafts are scheduled (γ > 0)",
        why="the drafts of a request in front use up the budget of a decode behind it",
        trace="BUD-2.jsonl",
    ),
    Falls(
        under=_prefill_first,
        when="prefill goes first",
        why="a step that admits somebody leaves every decode out",
        trace="BUD-2-prefill-first.jsonl",
    ),
)
def decodes_are_not_starved(step: Step) -> Outcome:
    """No decode is left out, for want of tokens, of a pass in which a prefill gets tokens."""
    plan = planned(step)
    if plan is None:
        return verdict(False, None)
    decoding = {r.id for r in step.before.running if not r.prefilling}
    decoding -= {e.id for e in step.events if isinstance(e, Preempted)}
    prefills = [e for e in plan if e.admitted or e.was_prefilling]
    want = {Reason.NO_TOKENS, Reason.PREFILL}
    left = [
        e.id
        for e in step.events
        if isinstance(e, Skipped) and e.reason in want and e.id in decoding
    ]
    if prefills and left:
        return Fall(f"{left} decode and get nothing, {[e.id for e in prefills]} prefill")
    return verdict(bool(prefills) and bool(decoding), None)


@step_property("WRK-1")
def waiting_has_a_reason(step: Step) -> Outcome:
    """A pass that leaves somebody out who runs, or the head of the waiting queue, names the reason,
    and the reason is true at that moment."""
    plan = planned(step)
    if plan is None:
        return verdict(False, None)
    excused: set[str] = set()
    spent: dict[str, int] = {}
    for m in folded(step).moments:
        match m.event:
            case Scheduled(id, tokens):
                spent[id] = tokens
            case Preempted(id):
                spent.pop(id, None)
                excused.add(id)
            case Skipped(id, reason):
                left = step.machine.config.max_num_batched_tokens - sum(spent.values())
                if not _true_reason(step, m, id, reason, left):
                    return Fall(f"{id} gets nothing, and {reason.name} is not true")
                excused.add(id)
    served = {e.id for e in plan}
    out = [r.id for r in (*step.after.running, *step.after.waiting[:1]) if r.id not in served]
    silent = [request_id for request_id in out if request_id not in excused]
    return verdict(bool(out), f"{silent} get nothing, and no reason is named" if silent else None)


def _true_reason(step: Step, m: Moment, request_id: str, reason: Reason, left: int) -> bool:
    config, policy = step.machine.config, step.machine.policy
    request = step.before.find(request_id)
    if request is None:
        return False
    hits = shared_prefix(step, m, request)
    rest = request.length - min(hits * config.block_size, request.length - 1)
    match reason:
        case Reason.NO_TOKENS:
            return left == 0
        case Reason.MODEL_LENGTH:
            return request.computed >= choose.running_cap(policy, config.max_model_len)
        case Reason.NO_SEATS:
            return len(m.running) >= config.max_num_seqs
        case Reason.PREEMPTION:
            return any(isinstance(e, Preempted) for e in step.events)
        case Reason.BATCH:
            return bool(step.before.running) and policy.batching is Batching.STATIC
        case Reason.PREFILL:
            return policy.step_mix is StepMix.PREFILL_FIRST and len(m.running) > len(
                step.before.running
            )
        case Reason.NO_CHUNKS:
            return not policy.chunked_prefill and rest > left
        case Reason.PADDING:
            return rest == 1 and 1 + config.num_speculative_tokens > left
        case Reason.NO_BLOCKS:
            return _most_blocks(step, m, request) - len(request.table) > len(m.queue)
        case Reason.NO_ROOM:
            return _most_blocks(step, m, request) - hits > len(m.queue) - config.watermark_blocks
    return False


def shared_prefix(step: Step, m: Moment, request: Request) -> int:
    """Blocks that a look-up finds at this moment: the longest cached prefix under the cap."""
    limit = choose.hit_limit(step.machine.policy, request.length, step.machine.config.block_size)
    found = (bool(m.index.get(key)) for key in request.keys[:limit])
    return sum(takewhile(bool, found))


def _most_blocks(step: Step, m: Moment, request: Request) -> int:
    """An upper bound of the free blocks that a request can be said to need."""
    config, policy = step.machine.config, step.machine.policy
    ahead = config.num_speculative_tokens + config.num_lookahead_tokens + 1
    whole = max(request.length, len(request.prompt) + request.max_tokens) + ahead
    whole = min(
        choose.slots_at_admission(policy, whole, config.max_model_len), config.max_model_len
    )
    found = (m.index[key] for key in request.keys if m.index.get(key))
    idle = sum(choose.copy_found(policy, copies) in m.queue for copies in found)
    longest = config.blocks_for(config.max_model_len)
    promised = choose.promised(policy, (longest - len(r.table) for r in m.running))
    return min(config.blocks_for(whole), longest) + idle + promised


@step_property("PRE-1")
def victims_are_named_by_policy(step: Step) -> Outcome:
    """In a pass a victim runs and is the one that policy names, and nobody is preempted while the
    free blocks suffice for the request that it makes room for."""
    if not isinstance(step.action, Schedule):
        return verdict(False, None)
    room: list[int] = []
    handled: set[str] = set()
    preempted = False
    for m in folded(step).moments:
        match m.event:
            case Preempted(id):
                preempted = True
                named = _named_victim(step, m)
                if named != id:
                    return Fall(f"{id} is preempted, policy names {named}")
                asking = next(r.id for r in m.running if r.id not in handled)
                room = [] if asking == id else [*room, len(m.queue)]
            case Scheduled(id, _, _, new):
                if room and max(room) >= len(new):
                    return Fall(f"{len(new)} blocks for {id}, {room} were free")
                room = []
                handled.add(id)
            case Skipped(id):
                handled.add(id)
    return verdict(preempted, None)


def _named_victim(step: Step, m: Moment) -> str | None:
    if step.machine.policy.victim is Victim.LAST_ADMITTED:
        return m.running[-1].id
    worst = max(((r.priority, r.arrival) for r in m.running), default=None)
    return next((r.id for r in m.running if (r.priority, r.arrival) == worst), None)


@step_property("ATOM-1")
def refusal_changes_nothing(step: Step) -> Outcome:
    """A refused allocation, request or reset, and an abort of nobody, leave all state equal."""
    done = (Preempted, Admitted, Scheduled)
    if isinstance(step.action, Schedule) and not any(isinstance(e, done) for e in step.events):
        same = evolve(step.after, in_flight=step.before.in_flight) == step.before
        return verdict(bool(step.before.live), None if same else "an empty pass changed the state")
    nothing = any(isinstance(e, Refused) for e in step.events) or (
        isinstance(step.action, Abort) and step.before.find(step.action.id) is None
    )
    changed = nothing and step.after != step.before
    return verdict(nothing, "a refusal changed the state" if changed else None)


@step_property("DEM-1")
def demand_is_what_is_taken(step: Step) -> Outcome:
    """The demand predicted for a request is what leaves the free queue for it."""
    config, policy = step.machine.config, step.machine.policy
    predicted: dict[str, int] = {}
    for m in folded(step).moments:
        if isinstance(m.event, Admitted):
            predicted[m.event.id] = sum(b in m.queue for b in m.event.blocks[: m.hits])
    true = False
    for e in planned(step) or ():
        true = True
        slots = min(e.start + len(e.tokens) + config.num_lookahead_tokens, config.max_model_len)
        if e.admitted:
            slots = choose.slots_at_admission(policy, slots, config.max_model_len)
        have = len(e.table) - e.new_blocks
        need = max(config.blocks_for(slots) - have, 0)
        if need != e.new_blocks:
            return Fall(f"{e.id} needs {need} blocks for {slots} slots and took {e.new_blocks}")
    freed = isinstance(step.action, Schedule) and not any(
        isinstance(e, Preempted) for e in step.events
    )
    if freed:
        taken = sum(e.new_blocks for e in planned(step) or ()) + sum(predicted.values())
        lost = len(step.before.pool.free) - len(step.after.pool.free)
        if taken != lost:
            return Fall(f"{taken} blocks were asked for, {lost} left the free queue")
    return verdict(true, None)
