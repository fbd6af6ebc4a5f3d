"""Properties of a pass: who is served, and with how much; who gives way, and who gets nothing."""

from __future__ import annotations

from servespec.events import Admitted, Preempted, Reason, Scheduled, Skipped
from servespec.machine import Schedule
from servespec.policy import StepMix
from servespec.properties import readings
from servespec.properties.base import (
    HELD,
    VACUOUS,
    Fall,
    Outcome,
    Step,
    planned,
    verdict,
)
from servespec.properties.books import Moment
from servespec.properties.dues import (
    blocks_lacking,
    can_be_asked,
    due_admitted,
    due_running,
    ends_admissions,
    has_turn,
    refusal,
    shut,
    true_reason,
)
from servespec.properties.folded import Folded, folded_property

# --- tokens --------------------------------------------------------------------------------


@folded_property("TOK-1")
def everybody_gets_its_due(fold: Folded) -> Outcome:
    """Who is scheduled gets exactly the tokens that are due to it: what is left of its text and its
    drafts, under the threshold, the tokens left and max_model_len; an admission what its hits
    leave, padded where the batch is uniform. Of its drafts those are used that these tokens
    reach. Those who run have their turns in list order."""
    step, joined, asked = fold.step, set[str](), False
    for m in fold.moments:
        match m.event:
            case Admitted(id):
                joined.add(id)
            case Scheduled(id, tokens, drafts) if (r := m.find(id)) is not None:
                asked, new = True, id in joined
                if not new and not has_turn(m, r):
                    return Fall(f"{id} is scheduled out of its turn")
                due = due_admitted(step, m, r, r.computed) if new else due_running(step, m, r)
                if isinstance(due, Reason):
                    return Fall(f"{id} is admitted, and {due.name} is true")
                if (tokens, drafts) != (due.tokens, due.drafts):
                    return Fall(f"{id} gets {tokens} tokens, {drafts} of them drafts, not {due}")
    return verdict(asked, None)


# --- who is admitted, and who gets nothing -------------------------------------------------


@folded_property("ADM-1")
def admissions_are_in_turn(fold: Folded) -> Outcome:
    """Who is admitted is the head of the waiting queue, or, where policy passes refused ones over,
    the first that was not; those who run have their turns before it, or after, by policy; it
    finds room; and admissions are not shut: by a preemption in the
    pass where policy says so, by a static batch, for want of tokens or seats."""
    step, admitted = fold.step, False
    for m in fold.moments:
        r = m.find(m.event.id) if isinstance(m.event, Admitted) else None
        if r is None:
            continue
        admitted = True
        if not can_be_asked(step, m, r):
            return Fall(f"{r.id} is admitted out of its turn: {[w.id for w in m.waiting]} wait")
        why = shut(step, m)
        if why:
            return Fall(f"{r.id} is admitted, and admissions are shut: {_names(why)}")
        refused = refusal(step, m, r)
        if refused is not None:
            return Fall(f"{r.id} is admitted, and {refused.name} is true")
    return verdict(admitted, None)


def _names(reasons: frozenset[Reason]) -> str:
    return ", ".join(sorted(reason.name for reason in reasons))


@folded_property("WRK-1")
def waiting_has_a_reason(fold: Folded) -> Outcome:
    """A pass that leaves somebody out who runs, or who waits and could have been asked, names the
    reason, and the reason is true at that moment."""
    step = fold.step
    if not isinstance(step.action, Schedule):
        return VACUOUS
    told: dict[str, Reason] = {}
    for m in fold.moments:
        match m.event:
            case Preempted(id):
                told.pop(id, None)
            case Skipped(id, reason):
                r = m.find(id)
                if r is None or not true_reason(step, m, r, reason):
                    return Fall(f"{id} gets nothing, and {reason.name} is not true")
                told[id] = reason
    served = {e.id for e in planned(step) or ()}
    out = [r.id for r in step.after.running if r.id not in served] + _asked(fold, told)
    silent = [request_id for request_id in out if request_id not in told]
    return verdict(bool(out), f"{silent} get nothing, and no reason is named" if silent else None)


def _asked(fold: Folded, told: dict[str, Reason]) -> list[str]:
    """Who waits and must have been asked: up to the first whose refusal ends admissions."""
    victims = {e.id for e in fold.step.events if isinstance(e, Preempted)}
    late = fold.step.machine.policy.step_mix is StepMix.PREFILL_FIRST
    asked = []
    for r in fold.step.after.waiting:
        if late and r.id in victims:
            continue  # it came back when admissions were over
        asked.append(r.id)
        if r.id not in told or ends_admissions(fold.step, told[r.id]):
            break
    return asked


# --- blocks --------------------------------------------------------------------------------


@folded_property("PRE-1")
def victims_are_named_by_policy(fold: Folded) -> Outcome:
    """In a pass a victim runs and is the one that policy names, and nobody is preempted while the
    free blocks suffice for the request that it makes room for, be it itself."""
    step, preempted = fold.step, False
    for m in fold.moments:
        if not isinstance(m.event, Preempted) or not isinstance(step.action, Schedule):
            continue
        preempted = True
        problem = _wrong_victim(step, m, m.event.id)
        if problem is not None:
            return Fall(problem)
    return verdict(preempted, None)


def _wrong_victim(step: Step, m: Moment, victim: str) -> str | None:
    named, turn = readings.gives_way(step.machine.policy, m.running), m.turn
    if named != victim:
        return f"{victim} is preempted, policy names {named or 'nobody'}"
    if turn is None:
        return f"{victim} is preempted, and it is nobody's turn"
    if not blocks_lacking(step, m, turn):
        return f"{victim} is preempted, and the free blocks {m.queue} suffice for {turn.id}"
    return None


@folded_property("DEM-1")
def demand_is_what_is_taken(fold: Folded) -> Outcome:
    """The demand predicted for a request is what leaves the free queue for it."""
    step = fold.step
    plan = planned(step)
    if not plan:
        return VACUOUS
    config, policy = step.machine.config, step.machine.policy
    for e in plan:
        slots = min(e.start + len(e.tokens) + config.num_lookahead_tokens, config.max_model_len)
        if e.admitted:
            slots = readings.table_at_admission(config, policy, slots)
        need = max(config.blocks_for(slots) - (len(e.table) - e.new_blocks), 0)
        if need != e.new_blocks:
            return Fall(f"{e.id} needs {need} blocks for {slots} slots and took {e.new_blocks}")
    if any(isinstance(e, Preempted) for e in step.events):
        return HELD
    hits = [(m, m.event) for m in fold.moments if isinstance(m.event, Admitted)]
    taken = sum(e.new_blocks for e in plan)
    taken += sum(b in m.queue for m, event in hits for b in event.blocks[: m.hits])
    lost = len(step.before.pool.free) - len(step.after.pool.free)
    return verdict(
        True,
        f"{taken} blocks were asked for, {lost} left the free queue" if taken != lost else None,
    )
