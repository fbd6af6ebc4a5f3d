"""What a pass owes a request at a moment: how many tokens and drafts, or why nothing.

A second reading of rules 11 to 36, from what is visible at that moment in the fold. TOK-1, WRK-1,
ADM-1 and PRE-1 hold a pass to it.
"""

from __future__ import annotations

from itertools import takewhile

from attrs import frozen

from servespec.events import Reason
from servespec.policy import AfterPreemption, Batching, HeadOfLine, StepMix, Victim
from servespec.properties import readings
from servespec.properties.base import Step
from servespec.properties.books import Moment
from servespec.request import Request


@frozen
class Due:
    """Tokens to compute, and how many of them are drafts."""

    tokens: int
    drafts: int


def shared_prefix(step: Step, m: Moment, request: Request) -> int:
    """Blocks that a look-up finds at this moment: the longest cached prefix under the cap."""
    size = step.machine.config.block_size
    most = readings.can_be_shared(step.machine.policy, request.length, size)
    found = (bool(m.index.get(key)) for key in request.keys[:most])
    return sum(takewhile(bool, found))


def hit_tokens(step: Step, request: Request, hits: int) -> int:
    """Tokens that shared blocks leave computed: never the last one."""
    return min(hits * step.machine.config.block_size, request.length - 1)


def threshold(step: Step) -> int:
    """Most tokens for one request in this pass; where there is no such limit, a whole text."""
    config, alone = step.machine.config, len(step.before.live) == 1
    limit = 0 if alone else config.long_prefill_token_threshold
    return limit or config.max_model_len


def due_running(step: Step, m: Moment, r: Request) -> Due:
    """What a running request is to compute; no tokens if max_model_len leaves none."""
    below = readings.most_computed(step.machine.config, step.machine.policy)
    wants = r.length + len(r.drafts) - r.computed
    tokens = max(min(wants, threshold(step), m.left, below - r.computed), 0)
    return Due(tokens, max(r.computed + tokens - r.length, 0))


def blocks_lacking(step: Step, m: Moment, r: Request) -> bool:
    """A running request finds too few free blocks for what it is to compute."""
    config = step.machine.config
    slots = r.computed + due_running(step, m, r).tokens + config.num_lookahead_tokens
    need = config.blocks_for(min(slots, config.max_model_len)) - len(r.table)
    return need > len(m.queue)


def due_admitted(step: Step, m: Moment, r: Request, computed: int) -> Due | Reason:
    """What an admission is to compute behind its hits, or why it must not be cut to that."""
    policy = step.machine.policy
    tokens, drafts = r.length - computed, 0
    if tokens == 1 and _padded(step, m, computed):
        drafts = step.machine.config.num_speculative_tokens
        if 1 + drafts > m.left:
            return Reason.PADDING
        tokens += drafts
    tokens = min(tokens, threshold(step))
    if tokens > m.left and not policy.chunked_prefill:
        return Reason.NO_CHUNKS
    return Due(min(tokens, m.left), drafts)


def _padded(step: Step, m: Moment, computed: int) -> bool:
    """Rule 36: a first decode is made as long as the others, if they are decodes."""
    config = step.machine.config
    gamma = config.num_speculative_tokens
    others = [e.was_prefilling for e in m.served if not e.admitted]
    if not step.machine.policy.pad_first_decode or gamma == 0 or any(others):
        return False
    return (len(others) > 0 or computed > 0) and computed + gamma + 2 <= config.max_model_len


def refusal(step: Step, m: Moment, r: Request) -> Reason | None:
    """Why a waiting request cannot be admitted at this moment, when its turn has come."""
    config, policy = step.machine.config, step.machine.policy
    hits = shared_prefix(step, m, r)
    computed = hit_tokens(step, r, hits)
    due = due_admitted(step, m, r, computed)
    if isinstance(due, Reason):
        return due
    first = computed + due.tokens + config.num_lookahead_tokens
    slots = max(
        readings.table_at_admission(config, policy, first), readings.looked_at(config, policy, r)
    )
    found = (readings.answering(policy, m.index[key]) for key in r.keys[:hits])
    need = max(config.blocks_for(slots) - hits, 0) + sum(b in m.queue for b in found)
    need += readings.spoken_for(config, policy, m.running)
    kept = config.watermark_blocks if m.running else 0
    return Reason.NO_ROOM if need + kept > len(m.queue) else None


def shut(step: Step, m: Moment) -> frozenset[Reason]:
    """Why nobody at all is admitted at this moment."""
    config, policy = step.machine.config, step.machine.policy
    nobody_after = policy.after_preemption is AfterPreemption.ADMIT_NOBODY
    reasons = {
        Reason.NO_TOKENS: m.left <= 0,
        Reason.NO_SEATS: len(m.running) >= config.max_num_seqs,
        Reason.PREEMPTION: m.preempted and nobody_after,
        Reason.BATCH: policy.batching is Batching.STATIC and bool(step.before.running),
    }
    return frozenset(reason for reason, true in reasons.items() if true)


def has_turn(m: Moment, r: Request) -> bool:
    """Those who run have their turns in list order."""
    return m.turn is not None and m.turn.id == r.id


def admissions_have_come(step: Step, m: Moment) -> bool:
    """Running first, all who run have had their turn; prefill first, none has that ran before."""
    if step.machine.policy.step_mix is StepMix.RUNNING_FIRST:
        return m.turn is None
    return all(e.admitted for e in m.served)


def can_be_asked(step: Step, m: Moment, r: Request) -> bool:
    """A waiting request has its turn: it is the head, or all before it were passed over."""
    skips = step.machine.policy.head_of_line is HeadOfLine.SKIP
    ahead = takewhile(lambda w: w.id != r.id, m.waiting)
    over = all(skips and w.id in m.passed for w in ahead)
    return over and r.id not in m.passed and admissions_have_come(step, m)


SHUTS = frozenset({Reason.NO_TOKENS, Reason.NO_SEATS, Reason.PREEMPTION, Reason.BATCH})
"""Reasons that end admissions, whoever is asked next."""


def ends_admissions(step: Step, reason: Reason) -> bool:
    """Whether nobody behind a waiting request that is refused for this is asked any more."""
    return reason in SHUTS or step.machine.policy.head_of_line is HeadOfLine.STOP


def true_reason(step: Step, m: Moment, r: Request, reason: Reason) -> bool:
    """Whether a request has its turn at this moment, and gets nothing for the reason that is
    named."""
    policy = step.machine.policy
    if any(r.id == w.id for w in m.waiting):
        true = reason in shut(step, m) or reason is refusal(step, m, r)
        return true and can_be_asked(step, m, r)
    if not has_turn(m, r):
        return False
    match reason:
        case Reason.NO_TOKENS:
            return m.left == 0
        case Reason.MODEL_LENGTH:
            return m.left > 0 and due_running(step, m, r).tokens == 0
        case Reason.NO_BLOCKS:
            return policy.victim is Victim.NONE and blocks_lacking(step, m, r)
        case Reason.PREFILL:
            admitted = any(e.admitted for e in m.served)
            return policy.step_mix is StepMix.PREFILL_FIRST and admitted
    return False
