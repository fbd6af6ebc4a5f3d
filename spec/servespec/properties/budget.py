"""Properties of the token budget of a pass, and how a decode can come to be left out of it."""

from __future__ import annotations

from servespec.config import Config
from servespec.events import Admitted, Preempted, Reason, Scheduled, Skipped
from servespec.policy import AfterPreemption, Policy, StepMix, Victim
from servespec.properties.base import (
    VACUOUS,
    Fall,
    Falls,
    Outcome,
    Step,
    planned,
    step_property,
    verdict,
)


@step_property("BUD-1")
def budget_is_kept(step: Step) -> Outcome:
    """A pass schedules at most the token budget, at most max_num_seqs requests run, and none is
    scheduled twice."""
    plan = planned(step)
    if plan is None:
        return VACUOUS
    config = step.machine.config
    total = sum(len(e.tokens) for e in plan)
    if total > config.max_num_batched_tokens:
        return Fall(f"{total} tokens of {config.max_num_batched_tokens}")
    if len(step.after.running) > config.max_num_seqs:
        return Fall(f"{len(step.after.running)} requests run, at most {config.max_num_seqs} may")
    if len({e.id for e in plan}) != len(plan):
        return Fall("a request is scheduled twice")
    return verdict(bool(plan), None)


def drafts_before_the_left_out(step: Step) -> bool:
    """Somebody got drafts scheduled before somebody was left out for want of tokens."""
    drafts = False
    for e in step.events:
        drafts = drafts or (isinstance(e, Scheduled) and e.drafts > 0)
        if drafts and isinstance(e, Skipped) and e.reason is Reason.NO_TOKENS:
            return True
    return False


def overtaken_by_prefill(step: Step) -> bool:
    """Those who run waited for an admission."""
    return any(isinstance(e, Skipped) and e.reason is Reason.PREFILL for e in step.events)


def overtaken_for_want_of_blocks(step: Step) -> bool:
    """A running prefill found no blocks, and somebody was admitted behind it."""
    prefills = {r.id for r in step.before.running if r.prefilling}
    passed = False
    for e in step.events:
        if isinstance(e, Skipped) and e.reason is Reason.NO_BLOCKS:
            passed = passed or e.id in prefills
        if passed and isinstance(e, Admitted):
            return True
    return False


def overtaken_after_giving_way(step: Step) -> bool:
    """Somebody that was scheduled gave way, and somebody was admitted in the same pass: with the
    tokens that came back too late for the request that it gave way to."""
    scheduled: set[str] = set()
    returned = False
    for e in step.events:
        match e:
            case Scheduled(id):
                scheduled.add(id)
            case Preempted(id):
                returned = returned or id in scheduled
            case Admitted() if returned:
                return True
    return False


def _drafts_eat_budget(config: Config, policy: Policy) -> bool:
    return config.num_speculative_tokens > 0


def _prefill_first(config: Config, policy: Policy) -> bool:
    return policy.step_mix is StepMix.PREFILL_FIRST


def _nobody_gives_way(config: Config, policy: Policy) -> bool:
    return policy.victim is Victim.NONE


def _admits_with_what_comes_back(config: Config, policy: Policy) -> bool:
    goes_on = policy.after_preemption is AfterPreemption.GO_ON
    return goes_on and policy.victim is Victim.WORST_PRIORITY


@step_property(
    "BUD-2",
    Falls(
        under=_drafts_eat_budget,
        when="drafts are scheduled (γ > 0)",
        why="the drafts of a request in front use up the budget of a decode behind it",
        trace="BUD-2.jsonl",
        cause=drafts_before_the_left_out,
    ),
    Falls(
        under=_prefill_first,
        when="prefill goes first",
        why="a step that admits somebody leaves every decode out",
        trace="BUD-2-prefill-first.jsonl",
        cause=overtaken_by_prefill,
        lasts=True,
    ),
    Falls(
        under=_nobody_gives_way,
        when="nobody is preempted",
        why=(
            "a prefill that found no blocks keeps its place, and a request admitted behind it "
            "decodes by the time that it finds them, and takes the budget"
        ),
        trace="BUD-2-no-victim.jsonl",
        cause=overtaken_for_want_of_blocks,
        lasts=True,
    ),
    Falls(
        under=_admits_with_what_comes_back,
        when="victims are chosen by priority, and admissions go on after a preemption",
        why=(
            "the tokens that a victim gives back admit somebody behind a prefill that was cut "
            "for want of them; by the next pass that one decodes, and the prefill takes the budget"
        ),
        trace="BUD-2-given-back.jsonl",
        cause=overtaken_after_giving_way,
        lasts=True,
    ),
)
def decodes_are_not_starved(step: Step) -> Outcome:
    """No decode is left out, for want of tokens, of a pass in which a prefill gets tokens."""
    plan = planned(step)
    if plan is None:
        return VACUOUS
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
