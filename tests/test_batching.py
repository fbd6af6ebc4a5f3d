"""Continuous batching is no later than static batching; where that is so, and where not."""

from __future__ import annotations

import os

import pytest
from attrs import evolve
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from servespec.actions import Complete, Submit
from servespec.chain import Namespace, link
from servespec.config import Config
from servespec.events import (
    Admitted,
    BlockRemoved,
    Delivered,
    Finished,
    Preempted,
    Reason,
    Refused,
    Scheduled,
)
from servespec.machine import Machine
from servespec.plan import State
from servespec.policy import PROFILES
from servespec.theory.batching import (
    CI,
    NIGHTLY,
    Late,
    Scope,
    Twins,
    courses,
    too_late,
    unhindered,
)
from servespec.theory.stream import (
    Arrival,
    Course,
    Events,
    Stream,
    StreamError,
    Tally,
    always,
    begin,
    computed,
    duration,
    ends,
    run,
    starts,
    tally,
)

unless_asked = pytest.mark.skipif(
    not os.environ.get("SERVECHECK_SLOW"), reason="takes a minute: set SERVECHECK_SLOW to run it"
)


def stream(*requests: tuple[int, int]) -> Stream:
    """Requests (arrival, output) with a prompt of one token."""
    return Stream(
        tuple(Arrival(at, Submit(f"r{i}", (0,), n)) for i, (at, n) in enumerate(requests))
    )


# --- ORD-1 -----------------------------------------------------------------------------------


def test_a_slot_that_is_free_is_filled_at_once() -> None:
    """Two slots. r0 writes three tokens, r1 one; r2 arrives with them. A static batch waits for r0
    before it begins r2, continuous batching does not."""
    twins = unhindered(slots=2, longest=4)
    requests = stream((0, 3), (0, 1), (0, 2))
    continuous, static = run(twins.first, requests), run(twins.second, requests)
    assert starts(continuous.steps) == {"r0": 0, "r1": 0, "r2": 1}
    assert ends(continuous.steps) == {"r0": 3, "r1": 1, "r2": 3}
    assert starts(static.steps) == {"r0": 0, "r1": 0, "r2": 3}
    assert ends(static.steps) == {"r0": 3, "r1": 1, "r2": 5}
    assert too_late(continuous, static) == ()
    assert [late.id for late in too_late(static, continuous)] == ["r2"]


@pytest.mark.parametrize(
    ("first", "second", "late"),
    [
        ((1, 3), (0, 3), True),  # begins later, ends as soon
        ((0, 4), (0, 3), True),
        ((0, None), (0, 3), True),  # never ends
        ((None, None), (0, 3), True),
        ((0, 3), (0, None), False),
        ((0, 3), (0, 3), False),
        ((0, 2), (1, 3), False),
    ],
)
def test_late_is_to_start_or_to_end_later(
    first: tuple[int | None, int | None], second: tuple[int | None, int | None], late: bool
) -> None:
    """Two courses of one request, written by hand: in which step it starts, and when it ends."""

    def course(start: int | None, end: int | None) -> Course:
        steps = [
            (Admitted("r", 0, ()),) * (step == start)
            + (Finished("r", Reason.LENGTH),) * (step + 1 == end)
            for step in range(5)
        ]
        return evolve(begin(unhindered(1, 2).first), steps=tuple(steps))

    told = too_late(course(*first), course(*second))
    assert told == ((Late("r", first, second),) if late else ())


def test_those_who_are_late_are_told_in_order() -> None:
    """Three requests: b and a start in the second step, c in the first, and before all in the
    first."""

    def course(*steps: str) -> Course:
        events = tuple(tuple(Admitted(id, 0, ()) for id in ids) for ids in steps)
        return evolve(begin(unhindered(3, 2).first), steps=events)

    told = too_late(course("c", "ba"), course("bac"))
    assert [late.id for late in told] == ["a", "b"]


def test_a_scope_is_every_stream_of_it_once() -> None:
    """Two requests at most, at the steps 0 and 1, of one or two tokens: 4 streams of one request,
    and 3 · 4 of two, as the second does not arrive before the first; with one slot and with two."""
    scope = Scope(requests=2, last_arrival=1, outputs=2, slots=2)
    kinds = [(at, output) for at in (0, 1) for output in (1, 2)]
    ones = [stream(kind) for kind in kinds]
    twos = [stream(a, b) for a in kinds for b in kinds if a[0] <= b[0]]
    found = [(twin.slots, twin.stream) for twin in courses(scope)]
    assert len(found) == 2 * (4 + 12)
    assert set(found) == {(slots, one) for slots in (1, 2) for one in ones + twos}
    texts = [a.submit.prompt + (0,) * a.submit.max_tokens for _, s in found for a in s.arrivals]
    assert max(map(len, texts)) == scope.longest == 3


def counted(scope: Scope) -> dict[int, tuple[int, int]]:
    """By slots: how many streams a scope has, and in how many of them static batching is later for
    somebody. ORD-1 holds on all of them."""
    found = dict.fromkeys(range(1, scope.slots + 1), (0, 0))
    for twin in courses(scope):
        assert (twin.first.state.live, twin.second.state.live) == ((), ())
        assert too_late(twin.first, twin.second) == (), twin.stream
        streams, later = found[twin.slots]
        found[twin.slots] = (streams + 1, later + bool(too_late(twin.second, twin.first)))
    return found


def test_every_stream_of_a_small_scope() -> None:
    """And the comparison is not between equals: with one slot both are the same, with more of them
    static batching is later in most streams."""
    found = counted(CI)
    assert sum(streams for streams, _ in found.values()) == 10_431
    assert found == {1: (3_477, 0), 2: (3_477, 2_391), 3: (3_477, 2_370)}


@pytest.mark.slow
@unless_asked
def test_every_stream_of_a_wider_scope() -> None:
    assert sum(streams for streams, _ in counted(NIGHTLY).values()) == 203_280


def test_shared_beginnings_change_nothing() -> None:
    """`courses` runs a stream piece by piece; `run` runs it in one go."""
    scope = Scope(requests=2, last_arrival=2, outputs=2, slots=2)
    for twin in courses(scope):
        twins = unhindered(twin.slots, scope.longest)
        for machine, course in ((twins.first, twin.first), (twins.second, twin.second)):
            whole = run(machine, twin.stream).steps
            assert (starts(whole), ends(whole)) == (starts(course.steps), ends(course.steps))


class TwinMachine(RuleBasedStateMachine):
    """One stream of Submits into twin machines, continuous and static."""

    LONGEST = 24

    @initialize(slots=st.integers(1, 6))
    def begin(self, slots: int) -> None:
        twins = self.twins(slots)
        self.first, self.second = begin(twins.first), begin(twins.second)
        self.due: tuple[Submit, ...] = ()
        self.came = 0

    def twins(self, slots: int) -> Twins:
        return unhindered(slots, self.LONGEST)

    @precondition(lambda self: self.came < 40)
    @rule(prompt=st.integers(1, 8), output=st.integers(1, 16))
    def arrive(self, prompt: int, output: int) -> None:
        self.due += (Submit(f"r{self.came}", (self.came,) * prompt, output),)
        self.came += 1

    @rule()
    def step(self) -> None:
        self.first, self.second = self.first.step(self.due), self.second.step(self.due)
        self.due = ()

    @rule(steps=st.integers(2, 12))
    def wait(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def teardown(self) -> None:
        if not hasattr(self, "first"):
            return
        self.step()
        first, second = self.first.drained(), self.second.drained()
        assert len(ends(first.steps)) == len(ends(second.steps)) == self.came
        assert too_late(first, second) == ()


TestTwins = TwinMachine.TestCase


class StaticFirst(TwinMachine):
    """The twins the wrong way round: the comparison must fail."""

    def twins(self, slots: int) -> Twins:
        twins = super().twins(slots)
        return Twins(twins.second, twins.first)


ONCE = settings(phases=(Phase.generate,), database=None, print_blob=False, derandomize=True)
"""Without shrinking."""


def test_the_state_machine_can_fail() -> None:
    with pytest.raises(AssertionError):
        run_state_machine_as_test(StaticFirst, settings=ONCE)


# --- streams ---------------------------------------------------------------------------------


def test_a_stream_is_in_order_and_names_everybody_once() -> None:
    with pytest.raises(StreamError, match="request 'r1': arrives at step 0, after one of step 1"):
        stream((1, 1), (0, 1))
    with pytest.raises(StreamError, match="request 'a': comes twice"):
        Stream((Arrival(0, Submit("a", (0,), 1)), Arrival(1, Submit("a", (0,), 1))))


def test_a_run_that_stands_still_is_over() -> None:
    """S4: a prompt that fills the pool, and wants one block more, waits for ever."""
    machine = Machine(Config(3, 1, 8, 8, 1), PROFILES["VLLM_0_33"])
    stuck = run(machine, Stream((Arrival(0, Submit("a", (0, 0, 0), 1)),)))
    assert stuck.idle
    assert ends(stuck.steps) == {}
    assert len(stuck.steps) < 5


def test_a_run_is_given_up_after_its_limit() -> None:
    machine = unhindered(1, 40).first
    assert len(run(machine, stream((0, 30)), limit=10).steps) == 10


def test_a_stream_is_over_with_its_last_arrival() -> None:
    """A request of one token is served in the step in which it comes; without one there is none."""
    machine = unhindered(1, 4).first
    assert stream((0, 1), (3, 1)).last == 3
    assert len(run(machine, stream((0, 1), (3, 1))).steps) == 4
    assert Stream(()).last == -1
    assert run(machine, Stream(())).steps == ()


def test_a_step_from_a_known_state_is_not_made_again() -> None:
    """Two streams that begin alike, through one machine: the model is asked once for each step that
    is new, of the second stream for the last one alone."""
    asked = []

    def counting(machine: Machine, state: State) -> Complete:
        asked.append(state)
        return always(7)(machine, state)

    course = begin(unhindered(2, 8).first, counting)
    assert len(course.through(stream((0, 3))).steps) == len(asked) == 3
    assert len(course.through(stream((0, 3), (2, 1))).steps) == 3
    assert len(asked) == 4


def test_what_a_step_computes_and_takes() -> None:
    """In the first step 2 + 3 tokens are scheduled, and b is sent back by the same pass: 2 are
    computed. In the second one b comes again with a hit of 1, and c is turned away."""
    key = link(Namespace(), None, (0,))
    first: Events = (
        Admitted("a", 0, (0,)),
        Admitted("b", 0, (1,)),
        Scheduled("a", 2, 0, ()),
        Scheduled("b", 3, 0, ()),
        Preempted("b"),
        Delivered("a", 0, (7, 8)),
    )
    second: Events = (
        Refused("c", Reason.IMPOSSIBLE),
        BlockRemoved(0, key),
        Admitted("b", 1, (1,)),
        Scheduled("b", 2, 0, ()),
        Delivered("b", 0, (7,)),
    )
    assert (computed(first), computed(second)) == ({"a": 2}, {"b": 2})
    assert tally((first, second)) == Tally(
        steps=2,
        admissions=3,
        hit_tokens=1,
        computed_tokens=4,
        delivered_tokens=3,
        evictions=1,
        preemptions=1,
        refusals=1,
    )
    assert duration((first, second)) == 2 + 4
    assert duration((first, second), a_step=10, a_token=3) == 20 + 12


def test_a_tally_counts_what_happened() -> None:
    """Blocks of one token, three of them; b has to give way, and finds its text again."""
    machine = Machine(Config(4, 1, 8, 8, 2), PROFILES["VLLM_0_33"])
    requests = Stream((Arrival(0, Submit("a", (1,), 2)), Arrival(0, Submit("b", (2,), 3))))
    course = run(machine, requests, always(7))
    told = tally(course.steps)
    assert (told.steps, told.delivered_tokens) == (len(course.steps), 5)
    assert told.admissions == 2 + told.preemptions
    assert told.preemptions == 1
    assert duration(course.steps) == told.steps + told.computed_tokens
