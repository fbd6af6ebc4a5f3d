"""LIV-1 on a finite run: a lasso, after which nothing can ever change.

That a request is never served is said of endless runs. A finite run shows it by coming back: if a
pass is made, and its outcome leads to the very state that the pass began with, and the outcome
could be no other (nobody sampled anything), then the loop goes round for ever, however fair it is.
A live request that fits alone in the machine is then starved.

The full statement of LIV-1 asks that *every* live request fit alone. This one asks it of the
starved one only, and so falls wherever a request that can never be served is queued before it.
"""

from __future__ import annotations

from attrs import frozen

from servespec.actions import Complete, Schedule, Submit
from servespec.config import Config
from servespec.events import Reason, Skipped
from servespec.machine import fits_alone
from servespec.plan import State
from servespec.policy import Admission, Impossible, Memory, Policy, Victim
from servespec.properties import (
    PROPERTIES,
    VACUOUS,
    Fall,
    Falls,
    Kind,
    Monitor,
    Outcome,
    Property,
    Step,
)
from servespec.properties.base import verdict


@frozen
class _Round:
    """Remembers the state before the pass in flight, if it is the only one."""

    start: State | None = None

    def after(self, step: Step) -> tuple[Monitor, Outcome]:
        if step.problem is not None:
            return _Round(), Fall(step.problem)
        match step.action:
            case Schedule() if not step.before.in_flight:
                return _Round(step.before), VACUOUS
            case Complete():
                starved = _starved(self.start, step)
                what = f"{starved} fits alone, and the loop goes round without it"
                return _Round(), verdict(bool(step.after.live), what if starved else None)
        return _Round(), VACUOUS


def _starved(start: State | None, step: Step) -> str | None:
    """A live request that fits alone, if this outcome leads back to `start` and could not do
    otherwise."""
    if step.after != start or any(e.yields for e in step.before.in_flight[0].entries):
        return None
    waits = (
        r.id
        for r in step.after.live
        if fits_alone(step.machine, Submit(r.id, r.prompt, r.max_tokens))
    )
    return next(waits, None)


def somebody_never_fits(step: Step) -> bool:
    """A live request can never be served."""
    asked = (Submit(r.id, r.prompt, r.max_tokens) for r in step.after.live)
    return not all(fits_alone(step.machine, submit) for submit in asked)


def somebody_lacks_blocks(step: Step) -> bool:
    """A running request was passed over for want of blocks."""
    return any(isinstance(e, Skipped) and e.reason is Reason.NO_BLOCKS for e in step.events)


def _queues_impossible(config: Config, policy: Policy) -> bool:
    return policy.impossible is Impossible.QUEUE


def _nobody_gives_way(config: Config, policy: Policy) -> bool:
    promised = policy.admission is Admission.WHOLE_REQUEST or policy.memory is Memory.RESERVED
    return policy.victim is Victim.NONE and not promised


LASSO = Property(
    "LIV-1",
    Kind.M,
    "No round of the loop leads back to its beginning while a request that fits alone is there.",
    lambda machine, state: _Round(),
    (
        Falls(
            under=_queues_impossible,
            when="a request that can never be served is queued",
            why=(
                "a prompt of max_model_len tokens that is cut into chunks stands one token before "
                "its end for ever, and keeps its seat and its blocks"
            ),
            trace="LIV-1.jsonl",
            cause=somebody_never_fits,
        ),
        Falls(
            under=_nobody_gives_way,
            when="nobody is preempted, and blocks are not promised at admission",
            why="each running request holds blocks that another one waits for",
            trace="LIV-1-no-victim.jsonl",
            cause=somebody_lacks_blocks,
            lasts=True,
        ),
    ),
)

WATCHED: dict[str, Property] = {LASSO.id: LASSO, **PROPERTIES}
"""What a replayed trace is asked."""
