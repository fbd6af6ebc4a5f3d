"""For every value of every axis of policy, and for every size, a story on which it matters.

A story is told once and played under each value, all else equal; what comes of it is said for
each, and no two come to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from itertools import combinations
from typing import Any, get_type_hints

import pytest
from attrs import asdict, define, evolve, field, fields_dict, frozen

from servespec.actions import Abort, Action, Complete, Discard, Output, ResetCache, Schedule, Submit
from servespec.chain import Token, Tokens
from servespec.config import Config
from servespec.errors import ActionDisabled
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
    Skipped,
    Submitted,
)
from servespec.machine import Machine
from servespec.plan import PADDING, Plan, State
from servespec.policy import (
    MINIATURE,
    NAMED,
    PROFILES,
    VLLM_0_33,
    Admission,
    AfterPreemption,
    Batching,
    FreeWalk,
    HeadOfLine,
    HitCap,
    Impossible,
    Lookup,
    Memory,
    Order,
    Policy,
    Publish,
    Readmission,
    Release,
    Reset,
    RunningCap,
    Sharing,
    StepMix,
    Unhashed,
    Victim,
    name_of,
    prioritised,
)
from servespec.pool import Blocks
from servespec.request import Request

# --- how stories are told ------------------------------------------------------------------

SIZES: dict[str, Any] = {
    "num_blocks": 9,
    "block_size": 2,
    "max_model_len": 16,
    "max_num_batched_tokens": 16,
    "max_num_seqs": 4,
}
"""Unless a story says otherwise: 8 blocks of 2, numbered from 1 since block 0 is the null block."""

SAMPLED: Token = 100
"""What every step samples. No prompt has it."""


@define
class Loop:
    """A machine and where it stands. A pass reads "a:2 b:1": two tokens of a, then one of b."""

    machine: Machine
    state: State = field(init=False)
    events: tuple[Event, ...] = ()
    """Of the last action."""

    def __attrs_post_init__(self) -> None:
        self.state = self.machine.initial()

    def do(self, action: Action) -> tuple[Event, ...]:
        moved = self.machine.apply(self.state, action)
        self.state, self.events = moved.state, moved.events
        return moved.events

    def submit(
        self,
        name: str,
        prompt: Tokens,
        max_tokens: int = 9,
        priority: int = 0,
        with_last: bool = False,
    ) -> None:
        self.do(Submit(name, prompt, max_tokens, priority=priority, with_last=with_last))

    def plan(self) -> str:
        self.do(Schedule())
        return " ".join(f"{entry.id}:{len(entry.tokens)}" for entry in self.in_flight.entries)

    def run(self, **drafts: Tokens) -> None:
        """The step runs: who is due a token gets one, and the drafts that are given for it."""
        due = [entry.id for entry in self.in_flight.entries if entry.yields and not entry.cancelled]
        self.do(Complete(tuple(Output(name, (SAMPLED,), drafts.get(name, ())) for name in due)))

    def step(self) -> str:
        passed = self.plan()
        self.run()
        return passed

    def steps(self, count: int) -> list[str]:
        return [self.step() for _ in range(count)]

    @property
    def in_flight(self) -> Plan:
        return self.state.in_flight[0]

    @property
    def free(self) -> Blocks:
        return self.state.pool.free

    @property
    def waiting(self) -> str:
        return " ".join(request.id for request in self.state.waiting)

    @property
    def preempted(self) -> str:
        return " ".join(event.id for event in self.events if isinstance(event, Preempted))

    @property
    def passed_over(self) -> dict[str, Reason]:
        return {event.id: event.reason for event in self.events if isinstance(event, Skipped)}

    @property
    def stored(self) -> list[int]:
        return [event.block for event in self.events if isinstance(event, BlockStored)]

    def request(self, name: str) -> Request:
        found = self.state.find(name)
        assert found is not None
        return found

    def table(self, name: str) -> Blocks:
        return self.request(name).table


@frozen
class Start:
    """Sets a loop up as its story wants it, under the value that is looked at."""

    policy: Policy
    looked_at: Mapping[str, Any]

    def __call__(self, **sizes: float) -> Loop:
        return Loop(Machine(Config(**{**SIZES, **sizes, **self.looked_at}), self.policy))


Teller = Callable[[Start], object]


@frozen
class Story:
    axis: str
    """An axis of policy, or a size."""
    outcomes: Mapping[Any, object]
    tell: Teller
    base: Policy

    def under(self, value: object) -> object:
        looked_at: dict[str, Any] = {self.axis: value}
        if self.axis in AXES:
            return self.tell(Start(evolve(self.base, **looked_at), {}))
        return self.tell(Start(self.base, looked_at))


AXES: Mapping[str, tuple[object, ...]] = {
    name: tuple(kind) if issubclass(kind, Enum) else (True, False)
    for name, kind in get_type_hints(Policy).items()
}
"""Every axis, and all its values."""

STORIES: list[Story] = []


def shows(
    axis: str, outcomes: Mapping[Any, object], base: Policy = VLLM_0_33
) -> Callable[[Teller], Teller]:
    """Mark a story: what comes of it under values of an axis, or of a size."""

    def mark(tell: Teller) -> Teller:
        STORIES.append(Story(axis, outcomes, tell, base))
        return tell

    return mark


# --- what is shared, and when --------------------------------------------------------------


@shows("sharing", {Sharing.FULL_BLOCKS: ("a:3 b:1", (1, 3)), Sharing.OFF: ("a:3 b:3", (3, 4))})
def one_prompt_twice(start: Start) -> object:
    """Given an empty cache, when 1 2 3 comes twice, then the second shares block 1 with its 1 2
    and computes only the 3; or it computes all, into blocks of its own."""
    loop = start()
    loop.submit("a", (1, 2, 3))
    loop.submit("b", (1, 2, 3))
    return loop.plan(), loop.table("b")


@shows("sharing", {Sharing.FULL_BLOCKS: (2, 3, 4, 1), Sharing.OFF: (2, 1, 3, 4)})
def what_a_request_leaves_behind(start: Start) -> object:
    """Given 1 2 3 in blocks 1 and 2, when it leaves, then the full block 1 is kept for last; or
    nothing is worth keeping, and both are used next."""
    loop = start(num_blocks=5)
    loop.submit("a", (1, 2, 3), max_tokens=1)
    loop.step()
    return loop.free


@shows("publish", {Publish.AT_SCHEDULE: ((1, 3), (1, 4)), Publish.AFTER_STEP: ((3, 4), (1, 5))})
def one_prompt_twice_and_once_more(start: Start) -> object:
    """Given an empty cache, when 1 2 3 comes twice before a step and once more after it, then the
    second shares block 1 though it is not written yet; or only the third does."""
    loop = start()
    loop.submit("a", (1, 2, 3))
    loop.submit("b", (1, 2, 3))
    loop.step()
    loop.submit("c", (1, 2, 3))
    loop.plan()
    return loop.table("b"), loop.table("c")


@shows(
    "publish",
    {
        Publish.AT_SCHEDULE: "this policy publishes blocks before they are written",
        Publish.AFTER_STEP: ((2, 1, 3, 4), 0, "a:3"),
    },
)
@shows(
    "sharing",
    {
        Sharing.FULL_BLOCKS: "this policy publishes blocks before they are written",
        Sharing.OFF: ((2, 1, 3, 4), 0, "a:3"),
    },
)
def a_step_that_never_ran(start: Start) -> object:
    """Given a pass over 1 2 3, when its step fails before it ran, then it cannot be dropped, for
    others may be reading its blocks already; or the blocks go back, and it is done again."""
    loop = start(num_blocks=5)
    loop.submit("a", (1, 2, 3))
    loop.plan()
    try:
        loop.do(Discard())
    except ActionDisabled as error:
        return error.what
    return loop.free, loop.request("a").computed, loop.plan()


@shows("publish", {Publish.AT_SCHEDULE: ([1], [2]), Publish.AFTER_STEP: ([], [1, 2])})
def a_block_that_drafts_complete(start: Start) -> object:
    """Given 1 2, its token and two drafts, which fill block 2, when they are accepted, then block 1
    was published with its plan, and block 2 when its content was known; or both only then."""
    loop = start(num_speculative_tokens=2)
    loop.submit("a", (1, 2))
    loop.plan()
    first = loop.stored
    loop.run(a=(7, 8))
    by_output = loop.stored
    loop.plan()
    assert loop.stored == []
    loop.do(Complete((Output("a", (7, 8, SAMPLED)),)))
    return first, by_output + loop.stored


@shows("lookup", {Lookup.OLDEST: (1, 3), Lookup.NEWEST: (2, 3)})
def two_copies_of_a_block(start: Start) -> object:
    """Given 1 2 in block 1, and again in block 2 since a last token is computed anew, when 1 2 3
    comes, then block 1 answers; or block 2."""
    loop = start(num_blocks=6)
    for name in ("a", "b"):
        loop.submit(name, (1, 2), max_tokens=1)
        loop.step()
    assert list(loop.state.pool.index.copies.values()) == [(1, 2)]
    loop.submit("c", (1, 2, 3))
    loop.plan()
    return loop.table("c")


@shows("hit_cap", {HitCap.LAST_TOKEN: (2, "b:2", (1, 3)), HitCap.NONE: (3, "b:1", (1, 2))})
def a_prompt_that_is_cached_to_its_end(start: Start) -> object:
    """Given 1 2 3 4 in blocks 1 and 2, when it comes again, then it shares block 1, and computes
    3 4 into block 3; or it shares both, and computes the 4 in its place."""
    loop = start()
    loop.submit("a", (1, 2, 3, 4), max_tokens=1)
    loop.step()
    loop.submit("b", (1, 2, 3, 4))
    passed = loop.plan()
    hit_tokens = next(event.hit_tokens for event in loop.events if isinstance(event, Admitted))
    return hit_tokens, passed, loop.table("b")


# --- the pool ------------------------------------------------------------------------------


@shows("null_block", {True: ((1, 2, 3), ""), False: ((0, 1, 2, 3), "a:7")})
def four_blocks(start: Start) -> object:
    """Given a pool of four blocks, then block 0 is not among those that are handed out, and a
    prompt of seven tokens finds no room; or it is, and the prompt does."""
    loop = start(num_blocks=4)
    free = loop.free
    loop.submit("a", (1, 2, 3, 4, 5, 6, 7))
    return free, loop.plan()


@shows(
    "free_walk",
    {FreeWalk.TAIL_FIRST: ((3, 4, 2, 1), [2]), FreeWalk.HEAD_FIRST: ((3, 4, 1, 2), [1])},
)
def the_end_of_a_prompt_or_its_beginning(start: Start) -> object:
    """Given 1 2 3 4 in blocks 1 and 2 of four, when it leaves, then its end stands before its
    beginning in the free queue, and is evicted by the next who takes three; or after it."""
    loop = start(num_blocks=5)
    loop.submit("a", (1, 2, 3, 4), max_tokens=1)
    loop.step()
    free = loop.free
    loop.submit("b", (5, 6, 7, 8, 9))
    loop.plan()
    return free, [event.block for event in loop.events if isinstance(event, BlockRemoved)]


@shows(
    "unhashed",
    {Unhashed.TO_HEAD: (4, 3, 5, 6, 7, 2, 1), Unhashed.IN_PLACE: (5, 6, 7, 4, 3, 2, 1)},
)
def blocks_without_a_key(start: Start) -> object:
    """Given 1 2 3 4 5 in blocks 1 to 4, of which 3 is half full and 4 was taken ahead, when it
    leaves, last block first, then 4 and 3 are used before all others; or after all others."""
    loop = start(num_blocks=8, num_speculative_tokens=1, num_lookahead_tokens=2)
    loop.submit("a", (1, 2, 3, 4, 5), max_tokens=1)
    loop.plan()
    assert loop.table("a") == (1, 2, 3, 4)
    loop.run()
    return loop.free


@shows("memory", {Memory.PAGED: ("a:2 b:2 c:2", (1,)), Memory.RESERVED: ("a:2 b:2", (1, 2, 3, 4))})
def three_short_prompts(start: Start) -> object:
    """Given room for 16 tokens, and at most 8 in a text, when three prompts of two tokens come,
    then each takes its one block; or each reserves four, and the third waits."""
    loop = start(max_model_len=8)
    for name, prompt in (("a", (1, 2)), ("b", (3, 4)), ("c", (5, 6))):
        loop.submit(name, prompt)
    return loop.plan(), loop.table("a")


@shows(
    "memory",
    {Memory.PAGED: ((), (1, 2, 3, 4)), Memory.RESERVED: ((1, 2, 3, 4), ())},
    base=evolve(VLLM_0_33, publish=Publish.AFTER_STEP),
)
def a_reservation_outlives_a_step(start: Start) -> object:
    """Given two tokens planned in a pool of four blocks, when the step never runs, then the block
    taken for it goes back; or the reservation stays with the request that was admitted."""
    loop = start(num_blocks=5, max_model_len=8)
    loop.submit("a", (1, 2))
    loop.plan()
    loop.do(Discard())
    return loop.table("a"), loop.free


@shows(
    "release",
    {
        Release.AT_ONCE: ((3, 2, 4, 5, 1), (3, 2, 4, 5, 1)),
        Release.DEFERRED: ((4, 5), (3, 2, 4, 5, 1)),
    },
)
def aborts_in_flight(start: Start) -> object:
    """Given a step in flight that writes 1 2 3 to blocks 1 and 2, and 4 to block 3, when both
    requests are aborted, then the blocks are free at once; or only when the step is done."""
    loop = start(num_blocks=6)
    loop.submit("a", (1, 2, 3))
    loop.submit("b", (4,))
    loop.plan()
    loop.do(Abort("a"))
    loop.do(Abort("b"))
    free = loop.free
    loop.run()
    return free, loop.free


@shows(
    "release",
    {Release.AT_ONCE: ((2, 1, 3, 4), (2, 1, 3, 4)), Release.DEFERRED: ((3, 4), (2, 1, 3, 4))},
    base=evolve(VLLM_0_33, publish=Publish.AFTER_STEP),
)
def an_abort_before_a_step_is_dropped(start: Start) -> object:
    """Given the same, when the step fails before it ran, then its blocks are free no later."""
    loop = start(num_blocks=5)
    loop.submit("a", (1, 2, 3))
    loop.plan()
    loop.do(Abort("a"))
    free = loop.free
    loop.do(Discard())
    return free, loop.free


@shows(
    "release",
    {Release.AT_ONCE: (CacheCleared(),), Release.DEFERRED: (Refused("reset", Reason.HELD),)},
)
def a_reset_after_an_abort_in_flight(start: Start) -> object:
    """Given a step in flight, when its only request is aborted, then the cache can be cleared; or
    it cannot, for the step still writes."""
    loop = start()
    loop.submit("a", (1, 2, 3))
    loop.plan()
    loop.do(Abort("a"))
    return loop.do(ResetCache())


@shows(
    "reset",
    {
        Reset.PREEMPT_FIRST: ((Preempted("b"), Preempted("a"), CacheCleared()), "a b", 8),
        Reset.REFUSE_WHILE_HELD: ((Refused("reset", Reason.HELD),), "", 6),
    },
)
def a_reset_that_may_preempt(start: Start) -> object:
    """Given two requests that run, one block each, when the cache is to be cleared and may send
    them back for it, then they wait again, in the same order; or the reset is refused, as any is
    that may not."""
    loop = start()
    loop.submit("a", (1,))
    loop.submit("b", (2,))
    loop.step()
    assert loop.do(ResetCache()) == (Refused("reset", Reason.HELD),)
    return loop.do(ResetCache(preempt_running=True)), loop.waiting, len(loop.free)


# --- who is served -------------------------------------------------------------------------


@shows(
    "batching",
    {Batching.CONTINUOUS: ["a:1 b:2", "b:1"], Batching.STATIC: ["a:1", "b:2"]},
)
def who_comes_later(start: Start) -> object:
    """Given a request that runs for one step more, when another arrives, then it joins; or it
    waits until nothing runs."""
    loop = start()
    loop.submit("a", (1, 2), max_tokens=2)
    loop.step()
    loop.submit("b", (3, 4))
    return loop.steps(2)


@shows(
    "admission",
    {
        Admission.STEP: ["a:2", "a:2", "a:2"],
        Admission.WHOLE_TEXT: ["", "a:2", "a:2"],
        Admission.WHOLE_REQUEST: ["", "", "a:2"],
    },
)
def pools_of_one_two_and_four_blocks(start: Start) -> object:
    """Given a prompt of four tokens that may yield five, so that eight are stored, and two tokens
    a pass: it enters a pool of one block, which its first chunk needs; of two, for its prompt; or
    only of four, for all that it can use."""
    passes = []
    for usable in (1, 2, 4):
        loop = start(num_blocks=1 + usable, max_num_batched_tokens=2)
        loop.submit("a", (1, 2, 3, 4), max_tokens=5)
        passes.append(loop.plan())
    return passes


@shows(
    "admission",
    {
        Admission.WHOLE_TEXT: (["a:2 b:2", "a:1 b:1", "a:1 b:1", "a:1"], "b"),
        Admission.WHOLE_REQUEST: (["a:2", "a:1", "a:1", "a:1"], ""),
    },
)
def two_that_grow(start: Start) -> object:
    """Given four blocks, and two requests of two tokens that may each use six, or three blocks:
    both enter, and the second is preempted when the first needs its third block; or two blocks are
    promised to the first, so the second waits, and nobody is preempted."""
    loop = start(num_blocks=5)
    loop.submit("a", (1, 2), max_tokens=5)
    loop.submit("b", (3, 4), max_tokens=5)
    passes = loop.steps(3)
    passes.append(loop.plan())
    return passes, loop.preempted


@shows(
    "admission",
    {
        Admission.STEP: ["a:2 b:2", "a:1 b:1", "a:1 b:1", "a:1", "a:1 b:3"],
        Admission.WHOLE_TEXT: ["a:2 b:2", "a:1 b:1", "a:1 b:1", "a:1", "a:1"],
    },
    base=evolve(VLLM_0_33, sharing=Sharing.OFF),
)
def a_text_that_has_grown(start: Start) -> object:
    """Given five blocks, of which a needs the last, when b comes back with three tokens of output,
    then the three tokens that the pass has left fit in two blocks; or all five do not."""
    loop = start(num_blocks=6, max_num_batched_tokens=4)
    loop.submit("a", (1, 2))
    loop.submit("b", (3, 4))
    return loop.steps(5)


@shows(
    "admission",
    {Admission.STEP: ["a:2", "a:2", "", ""], Admission.WHOLE_TEXT: ["", "", "", ""]},
)
def a_prompt_larger_than_the_pool(start: Start) -> object:
    """Given two blocks and a prompt of five tokens, two a pass: it computes four, gives way to
    itself, and then no longer fits; or it never enters."""
    loop = start(num_blocks=3, max_num_batched_tokens=2)
    loop.submit("a", (1, 2, 3, 4, 5))
    return loop.steps(4)


@shows(
    "impossible",
    {
        Impossible.REFUSE: ((Refused("a", Reason.IMPOSSIBLE),), "b:1"),
        Impossible.QUEUE: ((Submitted("a"),), ""),
    },
)
def a_request_that_can_never_fit(start: Start) -> object:
    """Given two blocks, when a prompt of five tokens comes, then it is turned away, and the next
    is served; or it waits for ever, and the next behind it."""
    loop = start(num_blocks=3)
    loop.submit("a", (1, 2, 3, 4, 5), max_tokens=1)
    said = loop.events
    loop.submit("b", (6,), max_tokens=1)
    return said, loop.plan()


@shows("order", {Order.FCFS: ("a:1", "b"), Order.PRIORITY: ("b:1", "a")})
def a_better_priority_that_comes_later(start: Start) -> object:
    """Given one seat, when a request of priority 5 comes and then one of priority 1, then the
    first comes first; or the smaller number does."""
    loop = start(max_num_seqs=1)
    loop.submit("a", (1,), priority=5)
    loop.submit("b", (2,), priority=1)
    return loop.plan(), loop.waiting


@shows("order", {Order.FCFS: "y z m a x", Order.PRIORITY: "y a m x z"})
def equals(start: Start) -> object:
    """Given y, then z of a worse priority, then m, a and x at one moment: they wait as they came;
    or z last, and the others by arrival, or by id where they arrived together."""
    loop = start()
    loop.submit("y", (1,))
    loop.submit("z", (2,), priority=1)
    loop.submit("m", (3,))
    loop.submit("a", (4,), with_last=True)
    loop.submit("x", (5,), with_last=True)
    return loop.waiting


@shows("order", {Order.FCFS: "b c", Order.PRIORITY: "c b"})
def back_in_the_queue(start: Start) -> object:
    """Given two seats and three blocks, a and b running, and c waiting with a better priority than
    b, when b is preempted, then it waits before c; or behind it."""
    loop = start(num_blocks=4, max_num_seqs=2)
    loop.submit("a", (1, 2))
    loop.submit("b", (3, 4, 5), priority=5)
    loop.step()
    loop.submit("c", (6,), priority=1)
    loop.plan()
    assert loop.preempted == "b"
    return loop.waiting


@shows(
    "head_of_line",
    {
        HeadOfLine.STOP: ("a:1", {"b": Reason.NO_ROOM}),
        HeadOfLine.SKIP: ("a:1 c:1", {"b": Reason.NO_ROOM}),
    },
)
def a_large_one_before_a_small_one(start: Start) -> object:
    """Given four blocks, two of them held, when a prompt of three blocks waits before one of one
    block, then both wait; or the small one passes the large one."""
    loop = start(num_blocks=5)
    loop.submit("a", (1, 2, 3))
    loop.step()
    loop.submit("b", (4, 5, 6, 7, 8))
    loop.submit("c", (9,))
    return loop.plan(), loop.passed_over


@shows("readmission", {Readmission.HEAD: ("b c", "a:1"), Readmission.TAIL: ("c b", "a:1 c:1")})
def who_is_sent_back(start: Start) -> object:
    """Given two seats and three blocks, a and b running and c waiting, when b is preempted, then it
    waits before c, and next time finds no room; or it waits behind c, which does."""
    loop = start(num_blocks=4, max_num_seqs=2)
    loop.submit("a", (1, 2))
    loop.submit("b", (3, 4, 5))
    loop.submit("c", (6,))
    assert loop.steps(2) == ["a:2 b:3", "a:1"]
    return loop.waiting, loop.plan()


# --- what a pass does ----------------------------------------------------------------------


@shows(
    "step_mix",
    {
        StepMix.RUNNING_FIRST: ("a:1 b:2", {}, "a:1 b:1"),
        StepMix.PREFILL_FIRST: ("b:2", {"a": Reason.PREFILL}, "a:1 b:1"),
    },
)
def a_prompt_while_another_decodes(start: Start) -> object:
    """Given one that decodes, when a prompt comes, then one pass does both; or the prompt alone,
    and the next pass both."""
    loop = start()
    loop.submit("a", (1, 2))
    loop.step()
    loop.submit("b", (3, 4))
    passed, over = loop.plan(), loop.passed_over
    loop.run()
    return passed, over, loop.plan()


@shows("step_mix", {StepMix.RUNNING_FIRST: "a:1 b:3", StepMix.PREFILL_FIRST: "b:4"})
def the_first_tokens_of_the_budget(start: Start) -> object:
    """Given four tokens a pass, one that decodes and a prompt of four, then the prompt gets the
    three that are left; or all four."""
    loop = start(max_num_batched_tokens=4)
    loop.submit("a", (1, 2))
    loop.step()
    loop.submit("b", (3, 4, 5, 6))
    return loop.plan()


@shows(
    "after_preemption",
    {
        AfterPreemption.ADMIT_NOBODY: ("a:1", "b", {"c": Reason.PREEMPTION}),
        AfterPreemption.GO_ON: ("a:1 c:1", "b", {"b": Reason.NO_ROOM}),
    },
    base=prioritised(VLLM_0_33),
)
def room_left_by_a_preemption(start: Start) -> object:
    """Given three blocks, and a needs one of the two that b gives back, when c waits for one, then
    it waits till the next pass; or gets the other one in this."""
    loop = start(num_blocks=4)
    loop.submit("a", (1, 2))
    loop.submit("b", (3, 4, 5), priority=5)
    loop.step()
    loop.submit("c", (6,), priority=1)
    return loop.plan(), loop.preempted, loop.passed_over


@shows(
    "chunked_prefill",
    {True: (["a:4", "a:2"], {}), False: (["", ""], {"a": Reason.NO_CHUNKS})},
)
def a_prompt_larger_than_the_budget(start: Start) -> object:
    """Given four tokens a pass and a prompt of six, then it is cut in two; or it never begins."""
    loop = start(max_num_batched_tokens=4)
    loop.submit("a", (1, 2, 3, 4, 5, 6))
    return [loop.step(), loop.plan()], loop.passed_over


@shows("chunked_prefill", {True: ["a:3 b:1", "a:1 b:1"], False: ["a:3", "a:1 b:2"]})
def what_the_budget_has_left(start: Start) -> object:
    """Given four tokens a pass, three of them used, then a prompt of two gets the one that is left;
    or waits for a pass that has two."""
    loop = start(max_num_batched_tokens=4)
    loop.submit("a", (1, 2, 3))
    loop.submit("b", (4, 5))
    return loop.steps(2)


@shows(
    "running_cap",
    {
        RunningCap.BELOW_MODEL_LENGTH: (["a:3", ""], (Skipped("a", Reason.MODEL_LENGTH),)),
        RunningCap.NONE: (
            ["a:3", "a:1"],
            (Delivered("a", 0, (SAMPLED,)), Finished("a", Reason.LENGTH)),
        ),
    },
)
def a_prompt_of_the_greatest_length(start: Start) -> object:
    """Given texts of at most four tokens, three a pass, and a prompt of four, then it stands before
    its last token for ever; or computes it, and ends with one token of output."""
    loop = start(max_model_len=4, max_num_batched_tokens=3)
    loop.submit("a", (1, 2, 3, 4))
    passes = [loop.step(), loop.plan()]
    said = loop.events
    loop.run()
    return passes, loop.events or said


@shows(
    "victim",
    {
        Victim.LAST_ADMITTED: ("a:1 b:1", "c", {"c": Reason.PREEMPTION}),
        Victim.WORST_PRIORITY: ("a:1 c:1", "b", {"b": Reason.PREEMPTION}),
        Victim.NONE: ("b:1 c:1", "", {"a": Reason.NO_BLOCKS}),
    },
)
def no_block_for_the_first(start: Start) -> object:
    """Given three blocks, one each for a, b and c, b of the worst priority, when a needs a second,
    then c, which came last, gives way; or b does; or a waits in its place."""
    loop = start(num_blocks=4)
    loop.submit("a", (1, 2))
    loop.submit("b", (3,), priority=5)
    loop.submit("c", (4,), priority=1)
    loop.step()
    return loop.plan(), loop.preempted, loop.passed_over


@shows("victim", {Victim.LAST_ADMITTED: "c", Victim.WORST_PRIORITY: "b", Victim.NONE: ""})
def no_block_and_two_equals(start: Start) -> object:
    """Given the same, but b and c of one priority, arrived together, then c gives way; or, of
    equals, b, which runs the longest; or nobody."""
    loop = start(num_blocks=4)
    loop.submit("a", (1, 2))
    loop.submit("b", (3,), priority=5)
    loop.submit("c", (4,), priority=5, with_last=True)
    loop.step()
    loop.plan()
    return loop.preempted


@shows(
    "victim",
    {Victim.LAST_ADMITTED: "b", Victim.WORST_PRIORITY: "c", Victim.NONE: ""},
    base=evolve(VLLM_0_33, head_of_line=HeadOfLine.SKIP),
)
def no_block_and_one_overtaken(start: Start) -> object:
    """Given four blocks, where c came after b and was admitted before it, when a needs a block,
    then b, which was admitted last, gives way; or c, which arrived last; or nobody."""
    loop = start(num_blocks=5)
    loop.submit("a", (1,))
    loop.submit("x", (7, 8, 9), max_tokens=1)
    loop.submit("b", (2, 3, 4))
    loop.submit("c", (5,))
    assert loop.steps(2) == ["a:1 x:3 c:1", "a:1 c:1 b:3"]
    loop.plan()
    return loop.preempted


@shows(
    "victim",
    {
        Victim.LAST_ADMITTED: ("a:1", "b"),
        Victim.WORST_PRIORITY: ("b:1", "a"),
        Victim.NONE: ("a:1", ""),
    },
)
def who_was_scheduled_already(start: Start) -> object:
    """Given two blocks, a with one token and b with two, when a is scheduled and b needs a block,
    then b itself gives way; or a, of a worse priority, and is scheduled no more; or b waits."""
    loop = start(num_blocks=3)
    loop.submit("a", (1,), priority=5)
    loop.submit("b", (2, 3))
    loop.step()
    return loop.plan(), loop.preempted


@shows(
    "victim",
    {
        Victim.LAST_ADMITTED: ("a:3 b:1", "c"),
        Victim.WORST_PRIORITY: ("b:1 c:3", "a"),
        Victim.NONE: ("a:3 c:1", ""),
    },
)
def what_was_scheduled_already(start: Start) -> object:
    """Given four blocks and four tokens a pass, when a has got three tokens and the last block, and
    b needs one, then c gives way; or a does, of a worse priority, and its three tokens go to those
    behind b; or b waits, and c gets the one that is left."""
    loop = start(num_blocks=5, max_num_batched_tokens=4, num_speculative_tokens=2)
    loop.submit("a", (1,), priority=5)
    loop.submit("b", (2, 3))
    loop.submit("c", (4,))
    loop.plan()
    loop.run(a=(7, 7), c=(8, 8))
    return loop.plan(), loop.preempted


@shows(
    "victim",
    {
        Victim.LAST_ADMITTED: ("a:3", "c b", ()),
        Victim.WORST_PRIORITY: ("b:1 c:1", "a", (2,)),
        Victim.NONE: ("b:1 c:1", "", (2,)),
    },
)
def too_much_for_the_first(start: Start) -> object:
    """Given three blocks, one each, when a with its drafts needs two more, then c and b give way;
    or a itself, of the worst priority, and the others get what they want; or a only waits."""
    loop = start(num_blocks=4, num_speculative_tokens=2)
    loop.submit("a", (1, 2), priority=5)
    loop.submit("b", (3,))
    loop.submit("c", (4,))
    loop.plan()
    loop.run(a=(7, 7))
    return loop.plan(), loop.preempted, loop.table("b")


@shows(
    "pad_first_decode",
    {True: ("a:1 b:3", (PADDING, PADDING)), False: ("a:1 b:1", ())},
)
def a_prompt_of_one_token_beside_a_decode(start: Start) -> object:
    """Given two drafts a step, one that decodes without any, and a prompt of one token, then two
    drafts that stand for none are added to it, so that steps are uniform; or it stays as it is."""
    loop = start(num_speculative_tokens=2)
    loop.submit("a", (1, 2))
    loop.step()
    loop.submit("b", (3,))
    return loop.plan(), loop.in_flight.entries[-1].drafts


PADDED = {
    "alone": 0,
    "alone, the rest of it cached": 2,
    "beside a decode": 2,
    "beside a decode, in texts of 4 tokens": 2,
    "beside a decode, in texts of 3 tokens": 0,
    "beside a decode, but two tokens": 0,
    "beside the rest of a prompt": 0,
}


@shows("pad_first_decode", {True: PADDED, False: dict.fromkeys(PADDED, 0)})
def who_is_padded(start: Start) -> object:
    """Given two drafts a step, when one token is all that an admission computes, then it is padded
    if there is something to be uniform with, and room in the text for one token more; or never."""

    def padding(before: Tokens, prompt: Tokens, max_tokens: int = 9, **sizes: int) -> int:
        loop = start(num_speculative_tokens=2, **sizes)
        if before:
            loop.submit("a", before, max_tokens)
            loop.step()
        loop.submit("b", prompt)
        loop.plan()
        return len(loop.in_flight.entries[-1].drafts)

    return {
        "alone": padding((), (3,)),
        "alone, the rest of it cached": padding((1, 2), (1, 2, 3), max_tokens=1),
        "beside a decode": padding((1, 2), (3,)),
        "beside a decode, in texts of 4 tokens": padding((1,), (3,), max_model_len=4),
        "beside a decode, in texts of 3 tokens": padding((1,), (3,), max_model_len=3),
        "beside a decode, but two tokens": padding((1, 2), (3, 4)),
        "beside the rest of a prompt": padding((1, 2, 3, 4, 5), (6,), max_num_batched_tokens=4),
    }


@shows(
    "pad_first_decode",
    {True: ("a:1", {"b": Reason.PADDING}), False: ("a:1 b:1", {})},
)
def no_budget_for_the_padding(start: Start) -> object:
    """Given the same, with three tokens a pass, then the padding does not fit, and the prompt
    waits; or there is none, and it comes along."""
    loop = start(num_speculative_tokens=2, max_num_batched_tokens=3)
    loop.submit("a", (1, 2))
    loop.step()
    loop.submit("b", (3,))
    return loop.plan(), loop.passed_over


# --- sizes ---------------------------------------------------------------------------------


@shows("num_blocks", {3: "", 4: "a:5"})
def five_tokens_in_a_pool(start: Start) -> object:
    """A prompt of five tokens needs three blocks, and block 0 is not handed out."""
    loop = start()
    loop.submit("a", (1, 2, 3, 4, 5))
    return loop.plan()


@shows("block_size", {2: (1, 2), 3: (1,)})
def three_tokens_in_blocks(start: Start) -> object:
    """Three tokens take two blocks of two, or one of three."""
    loop = start()
    loop.submit("a", (1, 2, 3))
    loop.plan()
    return loop.table("a")


@shows("max_model_len", {1: ["", "", ""], 3: ["a:2", "", ""], 4: ["a:2", "a:1", ""]})
def a_text_that_meets_its_limit(start: Start) -> object:
    """A prompt of two tokens is too long, or yields one token before its text is full, or two."""
    loop = start()
    loop.submit("a", (1, 2))
    return loop.steps(3)


@shows(
    "max_num_batched_tokens",
    {3: ["a:3", "a:1 b:2"], 4: ["a:3 b:1", "a:1 b:1"], 5: ["a:3 b:2", "a:1 b:1"]},
)
def prompts_of_three_and_two(start: Start) -> object:
    """The second prompt gets what the first leaves of the budget: nothing, a part, or all."""
    loop = start()
    loop.submit("a", (1, 2, 3))
    loop.submit("b", (4, 5))
    return loop.steps(2)


@shows("max_num_seqs", {1: ("a:1", {"b": Reason.NO_SEATS}), 2: ("a:1 b:1", {})})
def two_prompts_and_the_seats(start: Start) -> object:
    """The second prompt runs beside the first if there is a seat."""
    loop = start()
    loop.submit("a", (1,))
    loop.submit("b", (2,))
    return loop.plan(), loop.passed_over


@shows(
    "long_prefill_token_threshold",
    {0: ["a:5", "a:1 b:5", "a:1 b:1"], 2: ["a:5", "a:1 b:2", "a:1 b:2"]},
)
def one_long_prompt_alone_and_one_in_company(start: Start) -> object:
    """A long prompt that is alone is not cut, whatever the threshold; one in company is cut to it,
    when it enters and when it runs."""
    loop = start()
    loop.submit("a", (1, 2, 3, 4, 5))
    passes = [loop.step()]
    loop.submit("b", (6, 7, 8, 9, 10))
    return passes + loop.steps(2)


@shows("watermark", {0.4: "a:6 b:1", 0.5: "a:6"})
def one_block_beside_three(start: Start) -> object:
    """Given seven blocks and the null block, when a takes three, then b would leave three free:
    enough where ⌊0.4 · 8⌋ must stay free, and too few where 0.5 · 8 must."""
    loop = start(num_blocks=8)
    loop.submit("a", (1, 2, 3, 4, 5, 6))
    loop.submit("b", (7,))
    return loop.plan()


@shows("watermark", {0.0: ["a:8", "a:1 b:1"], 0.5: ["a:8", "a:1"]})
def the_watermark_binds_admissions_beside_others(start: Start) -> object:
    """Given seven blocks, of which four must stay free, then a prompt that is alone may take four,
    and one more as it runs; but nobody joins it."""
    loop = start(num_blocks=8)
    loop.submit("a", (1, 2, 3, 4, 5, 6, 7, 8))
    passes = [loop.step()]
    loop.submit("b", (9,))
    passes.append(loop.step())
    assert len(loop.table("a")) == 5
    return passes


@shows("num_speculative_tokens", {0: "a:1", 1: "a:2", 2: "a:3"})
def as_many_drafts_as_may_be(start: Start) -> object:
    """One token and its drafts are computed in one pass."""
    loop = start()
    loop.submit("a", (1, 2))
    loop.plan()
    loop.run(a=(7,) * loop.machine.config.num_speculative_tokens)
    return loop.plan()


@shows("num_lookahead_tokens", {0: [(1,), (1, 2)] * 2, 3: [(1, 2, 3)] * 2 + [(1, 2)] * 2})
def slots_ahead(start: Start) -> object:
    """A prompt of two tokens takes one block, and its output another; or with three slots ahead it
    takes three at once, but none past the greatest length, be it four, then or later."""
    tables = []
    for longest in (8, 4):
        loop = start(max_model_len=longest, num_speculative_tokens=1)
        loop.submit("a", (1, 2))
        for _ in range(2):
            loop.plan()
            tables.append(loop.table("a"))
            loop.run()
    return tables


# --- the stories are played ----------------------------------------------------------------


PLAYED = [
    pytest.param(story, value, id=f"{story.tell.__name__}-{getattr(value, 'name', value)}")
    for story in STORIES
    for value in story.outcomes
]


@pytest.mark.parametrize(("story", "value"), PLAYED)
def test_a_story_ends_as_it_is_told(story: Story, value: object) -> None:
    assert story.under(value) == story.outcomes[value]


@pytest.mark.parametrize("story", STORIES, ids=lambda s: f"{s.tell.__name__}-{s.axis}")
def test_no_two_values_come_to_the_same(story: Story) -> None:
    assert len(story.outcomes) > 1
    for one, other in combinations(story.outcomes.values(), 2):
        assert one != other


# --- and none is missing -------------------------------------------------------------------

ONE_STEP_ONLY = "max_steps_in_flight"
"""A size with one value so far."""


def untold(stories: Iterable[Story]) -> set[tuple[str, object, object]]:
    """The pairs of values of an axis that no story tells apart."""
    told = {(s.axis, one, other) for s in stories for one in s.outcomes for other in s.outcomes}
    pairs = ((axis, *pair) for axis, values in AXES.items() for pair in combinations(values, 2))
    return {pair for pair in pairs if pair not in told}


def test_every_value_of_every_axis_is_told_from_every_other() -> None:
    assert untold(STORIES) == set()


@pytest.mark.parametrize("axis", AXES)
def test_an_axis_without_its_stories_is_missed(axis: str) -> None:
    rest = [story for story in STORIES if story.axis != axis]
    assert untold(rest) == {(axis, *pair) for pair in combinations(AXES[axis], 2)}


def test_stories_speak_of_values_that_are_there() -> None:
    for story in STORIES:
        assert story.axis in AXES or story.axis in fields_dict(Config)
        if story.axis in AXES:
            assert set(story.outcomes) <= set(AXES[story.axis])


def test_there_are_22_axes_and_46_values() -> None:
    assert len(AXES) == 22
    assert sum(len(values) for values in AXES.values()) == 46


def test_every_size_has_a_story() -> None:
    assert {story.axis for story in STORIES} - set(AXES) == set(fields_dict(Config)) - {
        ONE_STEP_ONLY
    }


# --- profiles ------------------------------------------------------------------------------


def differences(one: Policy, other: Policy) -> dict[str, tuple[object, object]]:
    """Axis: its value in one policy, in the other."""
    mine, theirs = asdict(one, recurse=False), asdict(other, recurse=False)
    return {axis: (mine[axis], theirs[axis]) for axis in AXES if mine[axis] is not theirs[axis]}


FROM_VLLM_TO_MINIATURE = {
    "null_block": (True, False),
    "unhashed": (Unhashed.TO_HEAD, Unhashed.IN_PLACE),
    "hit_cap": (HitCap.LAST_TOKEN, HitCap.NONE),
    "impossible": (Impossible.QUEUE, Impossible.REFUSE),
    "chunked_prefill": (True, False),
    "running_cap": (RunningCap.BELOW_MODEL_LENGTH, RunningCap.NONE),
}
TO_STATIC = {
    "batching": (Batching.CONTINUOUS, Batching.STATIC),
    "publish": (Publish.AT_SCHEDULE, Publish.AFTER_STEP),
}
TO_RESERVED = {
    "memory": (Memory.PAGED, Memory.RESERVED),
    "publish": (Publish.AT_SCHEDULE, Publish.AFTER_STEP),
}


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        ("VLLM_0_33", "MINIATURE", FROM_VLLM_TO_MINIATURE),
        ("VLLM_0_33", "STATIC", FROM_VLLM_TO_MINIATURE | TO_STATIC),
        ("VLLM_0_33", "RESERVED", FROM_VLLM_TO_MINIATURE | TO_RESERVED),
        ("MINIATURE", "STATIC", TO_STATIC),
        ("MINIATURE", "RESERVED", TO_RESERVED),
        (
            "STATIC",
            "RESERVED",
            {
                "batching": (Batching.STATIC, Batching.CONTINUOUS),
                "memory": (Memory.PAGED, Memory.RESERVED),
            },
        ),
    ],
)
def test_profiles_differ_in_these_values_and_no_other(
    one: str, other: str, differ: dict[str, tuple[object, object]]
) -> None:
    assert differences(PROFILES[one], PROFILES[other]) == differ


def test_there_are_four_profiles() -> None:
    assert list(PROFILES) == ["VLLM_0_33", "MINIATURE", "STATIC", "RESERVED"]


def test_a_policy_is_known_by_its_name() -> None:
    """And one that differs from all that have a name has none."""
    assert [name_of(policy) for policy in NAMED.values()] == [*PROFILES, "VLLM_0_33_PRIORITY"]
    assert name_of(prioritised(MINIATURE)) is None


@pytest.mark.parametrize("policy", [VLLM_0_33, MINIATURE])
def test_priority_changes_the_order_and_the_victim(policy: Policy) -> None:
    assert differences(policy, prioritised(policy)) == {
        "order": (Order.FCFS, Order.PRIORITY),
        "victim": (Victim.LAST_ADMITTED, Victim.WORST_PRIORITY),
    }


def test_vllm_as_recorded() -> None:
    """The value on each axis that the recordings hold it to."""
    recorded = Policy(
        batching=Batching.CONTINUOUS,
        memory=Memory.PAGED,
        sharing=Sharing.FULL_BLOCKS,
        publish=Publish.AT_SCHEDULE,
        lookup=Lookup.OLDEST,
        null_block=True,
        free_walk=FreeWalk.TAIL_FIRST,
        unhashed=Unhashed.TO_HEAD,
        hit_cap=HitCap.LAST_TOKEN,
        admission=Admission.WHOLE_TEXT,
        impossible=Impossible.QUEUE,
        order=Order.FCFS,
        head_of_line=HeadOfLine.STOP,
        readmission=Readmission.HEAD,
        step_mix=StepMix.RUNNING_FIRST,
        after_preemption=AfterPreemption.ADMIT_NOBODY,
        chunked_prefill=True,
        running_cap=RunningCap.BELOW_MODEL_LENGTH,
        victim=Victim.LAST_ADMITTED,
        pad_first_decode=True,
        release=Release.AT_ONCE,
        reset=Reset.PREEMPT_FIRST,
    )
    assert recorded == VLLM_0_33
