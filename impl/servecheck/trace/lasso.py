"""LIV-1 on a finite run: a lasso, round which the run can go for ever.

Theory of operation. That a request is never served is said of endless runs. A finite run shows it
by coming back: the state after an action is one that was there before, and since then nothing has
happened but what may happen for ever (`goes_on`): passes, their outcomes, and arrivals that are
served after the request that waits. So all of it can happen again and again: both Schedule and
Complete are on the way round, since nothing else comes back without them, and the run is fair. A
request that fits alone and was there all the time is never served: had it got a token, its output
would be longer than it was.

What is remembered: the states since the moment from which the longest waiting request has got
nothing. One of them equals the present one only if their *prints* do, which are cheap.

The full statement of LIV-1 asks that *every* live request fit alone. This one asks it of the
starved one only, and so falls wherever a request that can never be served is queued before it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from attrs import define, field, frozen

from servecheck.trace.fairness import (
    fills_the_model,
    served_after,
    too_large,
    too_long,
)
from servespec.actions import Complete, Schedule, Submit
from servespec.config import Config, usable_blocks
from servespec.events import Admitted, Preempted, Reason, Refused, Skipped
from servespec.machine import Machine, fits_alone
from servespec.plan import State
from servespec.policy import (
    Admission,
    HeadOfLine,
    Impossible,
    Memory,
    Policy,
    StepMix,
    Victim,
)
from servespec.properties import (
    HELD,
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
from servespec.properties.budget import overtaken_by_prefill
from servespec.request import Request

# --- the monitor ---------------------------------------------------------------------------


def _print(state: State) -> Hashable:
    """Equal for equal states, and cheap: nothing of what is cached is looked at."""
    return (
        tuple((r.id, r.computed, len(r.output)) for r in state.running),
        tuple(r.id for r in state.waiting),
        len(state.in_flight),
        len(state.pool.free),
    )


@define(eq=False)
class Past:
    """States of one run, the oldest first. It only grows: a monitor that does not go on from its
    end makes its own."""

    first: int
    """Number of the oldest, which is that of its action."""
    states: list[State] = field(factory=list)
    numbers: dict[Hashable, list[int]] = field(factory=dict)
    """By print."""

    @property
    def end(self) -> int:
        return self.first + len(self.states)

    def add(self, state: State) -> None:
        self.numbers.setdefault(_print(state), []).append(self.end)
        self.states.append(state)

    def newest(self, state: State) -> int | None:
        """Number of the last state equal to this one."""
        there = reversed(self.numbers.get(_print(state), []))
        return next((n for n in there if self.states[n - self.first] == state), None)

    def part(self, first: int, end: int) -> Past:
        past = Past(first)
        for state in self.states[first - self.first : end - self.first]:
            past.add(state)
        return past


SLACK = 64
"""Forgotten states that are kept, so that they need not be cleared away at every step."""


@frozen
class Run:
    """Remembers where the run has been while somebody waited."""

    past: Past
    now: int
    """Number of the present state, the last one of the past."""
    since: Mapping[str, int]
    """Of each live request that fits alone the number of the state from which on it got nothing,
    and nothing happened that cannot happen for ever."""

    def after(self, step: Step) -> tuple[Monitor, Outcome]:
        if step.problem is not None:
            return _began(step.machine, step.after), Fall(step.problem)
        since, now = self._waiting(step), self.now + 1
        if not since:
            return Run(_beginning(now, step.after), now, since), VACUOUS
        earliest = min(since.values())
        past = self.past
        if past.end != now or now - past.first > 2 * (now - earliest) + SLACK:
            past = past.part(max(earliest, past.first), now)
        starved = None
        if not any(isinstance(e, Refused) for e in step.events):
            starved = self._starved(past, step, since, now)
        past.add(step.after)
        goes = Run(past, now, since)
        if starved is not None:
            return goes, Fall(f"{starved} fits alone, and the loop goes round without it")
        return goes, HELD if isinstance(step.action, Complete) else VACUOUS

    def _starved(self, past: Past, step: Step, since: Mapping[str, int], now: int) -> str | None:
        """Who has got nothing since this very state was there before."""
        was = past.newest(step.after)
        if was is None:
            return None
        return next((r.id for r in step.after.live if since.get(r.id, now) <= was), None)

    def _waiting(self, step: Step) -> Mapping[str, int]:
        action, now = step.action, self.now + 1
        match action:
            case Schedule():
                return self.since
            case Complete():
                entries = step.before.in_flight[0].entries
                served = {e.id for e in entries if e.yields and not e.cancelled}
                got = [name for name in self.since if name in served]
                if not got:
                    return self.since
                there = {r.id for r in step.after.live}
                since = {**self.since, **dict.fromkeys(got, now)}
                return {name: number for name, number in since.items() if name in there}
            case Submit():
                return self._joined(step, action)
        there = {r.id for r in step.after.live}
        return {name: now for name in self.since if name in there}

    def _joined(self, step: Step, submit: Submit) -> Mapping[str, int]:
        """With who arrives; who has to let it go before may wait for that."""
        policy, now = step.machine.policy, self.now + 1
        request = step.after.find(submit.id)
        if request is None or step.before.find(submit.id) is not None:
            return self.since
        since = dict(self.since)
        for r in step.before.live:
            if r.id in since and not served_after(policy, submit, r):
                since[r.id] = now
        if fits_alone(step.machine, request):
            since[submit.id] = now
        return since


def _beginning(number: int, state: State) -> Past:
    past = Past(number)
    past.add(state)
    return past


def _began(machine: Machine, state: State) -> Run:
    waits = {r.id: 0 for r in state.live if fits_alone(machine, r)}
    return Run(_beginning(0, state), 0, waits)


# --- where it falls ------------------------------------------------------------------------


def _live(step: Step, never: Callable[[Machine, Request], bool]) -> bool:
    return any(never(step.machine, r) for r in step.after.live)


def somebody_lacks_blocks(step: Step) -> bool:
    """A running request was passed over for want of blocks."""
    return any(isinstance(e, Skipped) and e.reason is Reason.NO_BLOCKS for e in step.events)


def somebody_is_passed_over(step: Step) -> bool:
    """Somebody found no room, and another was admitted."""
    passed = False
    for e in step.events:
        passed = passed or (isinstance(e, Skipped) and e.reason is Reason.NO_ROOM)
        if passed and isinstance(e, Admitted):
            return True
    return False


def an_equal_gives_way(step: Step) -> bool:
    """Somebody was preempted who came together with another one that ran, and is no worse."""
    if not isinstance(step.action, Schedule):
        return False
    ranks = [(r.priority, r.arrival) for r in step.before.live]
    gone = {e.id for e in step.events if isinstance(e, Preempted)}
    return any(ranks.count((r.priority, r.arrival)) > 1 for r in step.before.live if r.id in gone)


def _queues_impossible(config: Config, policy: Policy) -> bool:
    return policy.impossible is Impossible.QUEUE


def _pool_below_longest_text(config: Config, policy: Policy) -> bool:
    whole = config.blocks_for(config.max_model_len)
    return policy.impossible is Impossible.QUEUE and whole > usable_blocks(config, policy)


def _pass_below_longest_text(config: Config, policy: Policy) -> bool:
    below = config.max_num_batched_tokens < config.max_model_len - 1
    return policy.impossible is Impossible.QUEUE and not policy.chunked_prefill and below


def _nobody_gives_way(config: Config, policy: Policy) -> bool:
    promised = policy.admission is Admission.WHOLE_REQUEST or policy.memory is Memory.RESERVED
    return policy.victim is Victim.NONE and not promised


def _prefill_first(config: Config, policy: Policy) -> bool:
    return policy.step_mix is StepMix.PREFILL_FIRST


def _passes_over(config: Config, policy: Policy) -> bool:
    return policy.head_of_line is HeadOfLine.SKIP


def _equals_give_way(config: Config, policy: Policy) -> bool:
    return policy.victim is Victim.WORST_PRIORITY and policy.admission is Admission.STEP


LASSO = Property(
    "LIV-1",
    Kind.M,
    "Who fits alone is served: no way round leads back to where it began while somebody waits.",
    _began,
    (
        Falls(
            under=_queues_impossible,
            when="a request whose prompt leaves no room for a token is queued",
            why=(
                "a prompt of max_model_len tokens that is cut into chunks stands one token before "
                "its end for ever, and keeps its seat and its blocks"
            ),
            trace="LIV-1.jsonl",
            cause=lambda step: _live(step, fills_the_model),
        ),
        Falls(
            under=_pool_below_longest_text,
            when="a request that needs more blocks than there are is queued",
            why="nobody is admitted past the head of the queue, and it never finds room",
            trace="LIV-1-larger-than-pool.jsonl",
            cause=lambda step: _live(step, too_large),
        ),
        Falls(
            under=_pass_below_longest_text,
            when="a text that is longer than a pass is queued, and texts are not cut",
            why="nobody is admitted past the head of the queue, and it never finds the tokens",
            trace="LIV-1-no-chunks.jsonl",
            cause=lambda step: _live(step, too_long),
        ),
        Falls(
            under=_nobody_gives_way,
            when="nobody is preempted, and blocks are not promised at admission",
            why="each running request holds blocks that another one waits for",
            trace="LIV-1-no-victim.jsonl",
            cause=somebody_lacks_blocks,
            lasts=True,
        ),
        Falls(
            under=_prefill_first,
            when="prefill goes first",
            why="a step that admits somebody leaves every decode out, and somebody always arrives",
            trace="LIV-1-prefill-first.jsonl",
            cause=overtaken_by_prefill,
            lasts=True,
        ),
        Falls(
            under=_passes_over,
            when="a refused head of the queue is passed over",
            why="small requests that keep arriving take the blocks that a large one waits for",
            trace="LIV-1-passed-over.jsonl",
            cause=somebody_is_passed_over,
            lasts=True,
        ),
        Falls(
            under=_equals_give_way,
            when="victims are chosen by priority, and admissions look at their first step only",
            why=(
                "of two that came together the first in the list gives way, be it to itself: it "
                "goes behind the other and is then not the first, and neither ends its prompt"
            ),
            trace="LIV-1-livelock.jsonl",
            cause=an_equal_gives_way,
            lasts=True,
        ),
    ),
)

WATCHED: dict[str, Property] = {LASSO.id: LASSO, **PROPERTIES}
"""What a replayed trace is asked."""
