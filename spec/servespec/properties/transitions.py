"""Properties of every transition: what becomes of a request, of the plans, of a refusal."""

from __future__ import annotations

from attrs import evolve

from servespec.chain import Tokens
from servespec.config import usable_blocks
from servespec.events import (
    Admitted,
    CacheCleared,
    Delivered,
    Event,
    Finished,
    Preempted,
    Reason,
    Refused,
    Scheduled,
    Submitted,
)
from servespec.machine import Abort, Complete, ResetCache, Schedule, Submit
from servespec.policy import Reset
from servespec.properties import readings
from servespec.properties.base import VACUOUS, Fall, Outcome, Step, step_property, tables, verdict
from servespec.properties.folded import Folded, folded_property
from servespec.request import Request

# --- requests and plans --------------------------------------------------------------------


@folded_property("REQ-1")
def requests_are_what_was_told(fold: Folded) -> Outcome:
    """A request is stored as it was submitted, and changes only by what is told of it: its output
    grows by what was sampled for it, in scheduling order, up to its end; C by what is scheduled,
    less the drafts that are rejected; drafts are those last proposed, until a pass uses or loses
    them."""
    step = fold.step
    problem = _wrong_output(step)
    if problem is not None:
        return Fall(problem)
    after = {r.id: r for r in step.after.live}
    changed = False
    for r in (*fold.waiting, *fold.running):
        there = after.get(r.id)
        if there is None or there is r:
            continue
        changed = True
        mine, other = _books(r), _books(there)
        if mine != other:
            wrong = {name: other[name] for name in mine if mine[name] != other[name]}
            return Fall(f"{r.id} has {wrong}, not { {name: mine[name] for name in wrong} }")
    return verdict(changed, None)


def _books(r: Request) -> dict[str, object]:
    """All of a request but its keys, which IDX-3 and PUB-1 hold to its text."""
    return {
        "namespace": r.namespace,
        "prompt": r.prompt,
        "max_tokens": r.max_tokens,
        "priority": r.priority,
        "stop": r.stop,
        "arrival": r.arrival,
        "output": r.output,
        "computed": r.computed,
        "table": r.table,
        "published": r.published,
        "drafts": r.drafts,
        "prefilling": r.prefilling,
    }


def _wrong_output(step: Step) -> str | None:
    """What was sampled for the living is delivered, in scheduling order, all of it but what
    follows an end."""
    if not isinstance(step.action, Complete):
        return None
    entries = step.before.in_flight[0].entries
    sampled = {o.id: o.tokens for o in step.action.outputs}
    told: dict[str, Tokens] = {e.id: e.tokens for e in step.events if isinstance(e, Delivered)}
    ended = {e.id for e in step.events if isinstance(e, Finished)}
    if list(told) != [e.id for e in entries if e.id in told and not e.cancelled]:
        return f"tokens are delivered to {list(told)}, in another order than scheduled"
    for e in entries:
        if e.cancelled or not e.yields:
            continue
        brought, got = sampled.get(e.id, ()), told.get(e.id, ())
        if got != brought[: len(got)] or (got != brought and e.id not in ended):
            return f"{brought} was sampled for {e.id}, and {got} delivered"
    return None


@folded_property("PLAN-2")
def plans_are_what_was_told(fold: Folded) -> Outcome:
    """A plan tells the worker what the events of its pass tell: who was scheduled, in that order,
    which tokens and drafts of its text, through which table. It stays in flight as it was made,
    but for entries whose requests have left, and for the tables that then wait for it."""
    there = fold.step.after.in_flight
    if fold.in_flight != there:
        return Fall(f"{there} is in flight, and {fold.in_flight} was told")
    return verdict(any(plan.entries for plan in there), None)


# --- refusals and resets -------------------------------------------------------------------


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


@step_property("RST-1")
def resets_are_refused_with_reason(step: Step) -> Outcome:
    """A reset is refused if and only if blocks are held: by anybody, or, where it is asked to
    preempt what runs and policy lets it, by a step in flight. Otherwise it preempts those who run,
    the last first, and only then; and forgets every key. A request is refused if and only if it
    can never fit, and policy turns such away."""
    due: tuple[Event, ...]
    match step.action:
        case ResetCache(asked):
            due = _due_reset(step, asked and step.machine.policy.reset is Reset.PREEMPT_FIRST)
            if CacheCleared() in due and step.after.pool.index.copies:
                return Fall("the cache was cleared, and something can still be found")
        case Submit(id):
            never = _never_fits(step, step.action)
            due = (Refused(id, Reason.IMPOSSIBLE) if never else Submitted(id),)
        case _:
            return VACUOUS
    wrong = f"{step.events} was told, and {due} was due" if step.events != due else None
    return verdict(True, wrong)


def _due_reset(step: Step, preempts: bool) -> tuple[Event, ...]:
    before, policy = step.before, step.machine.policy
    if not preempts:
        held = any(tables(before))
        return (Refused("reset", Reason.HELD),) if held else (CacheCleared(),)
    held = any(plan.deferred for plan in before.in_flight)
    if readings.held_until_done(policy):
        flying = {e.id for plan in before.in_flight for e in plan.entries if not e.cancelled}
        held = held or any(r.table and r.id in flying for r in before.running)
    if held:
        return (Refused("reset", Reason.HELD),)
    return (*(Preempted(r.id) for r in reversed(before.running)), CacheCleared())


def _never_fits(step: Step, asked: Submit) -> bool:
    """Its prompt is longer than any text; or, where policy turns such away, its text with all that
    it needs besides is no text of this pool, or cannot be computed in one pass and not be cut."""
    config, policy = step.machine.config, step.machine.policy
    prompt, longest = len(asked.prompt), config.max_model_len
    if prompt > longest or not readings.turns_impossible_away(policy):
        return prompt > longest
    last = prompt + asked.max_tokens - 1
    slots = last + config.num_speculative_tokens + config.num_lookahead_tokens
    whole = config.blocks_for(min(slots, longest)) > usable_blocks(config, policy)
    cut = policy.chunked_prefill or min(last, longest - 1) <= config.max_num_batched_tokens
    return whole or prompt == longest or not cut
