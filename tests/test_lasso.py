"""LIV-1 on a finite run: which ways round are a lasso, and which are none.

The lassos themselves are committed and searched for (`test_known_falls`, `test_liveness`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import evolve

from servecheck.trace.lasso import LASSO, SLACK, Run
from servecheck.trace.shrink import fall_in
from servespec.actions import Abort, Action, Complete, Output, ResetCache, Schedule, Submit
from servespec.config import Config
from servespec.machine import Machine
from servespec.plan import State
from servespec.policy import VLLM_0_33, StepMix, Victim, prioritised
from servespec.properties import HELD, VACUOUS, Fall, Monitor, Outcome, step_of

PREFILL_FIRST = Machine(Config(3, 1, 3, 2, 2), evolve(VLLM_0_33, step_mix=StepMix.PREFILL_FIRST))
LONG, SHORT = Submit("long", (0,), 2), Submit("short", (0,), 1)
BEGIN = (
    LONG,
    SHORT,
    Schedule(),
    Complete((Output("long", (0,)), Output("short", (0,)))),
)
ROUND = (SHORT, Schedule(), Complete((Output("short", (0,)),)))
"""Somebody arrives, is served first, and leaves."""
STARVED = "long fits alone, and the loop goes round without it"


def falls_at(machine: Machine, actions: Sequence[Action]) -> list[int]:
    """The actions on which LIV-1 falls."""
    state, found = machine.initial(), list[int]()
    monitor = LASSO.start(machine, state)
    for at, action in enumerate(actions):
        moved = machine.apply(state, action)
        monitor, outcome = monitor.after(step_of(machine, state, action, moved))
        if isinstance(outcome, Fall):
            assert outcome.what == STARVED
            found.append(at)
        state = moved.state
    return found


def test_who_waits_while_the_run_comes_back_is_starved() -> None:
    """At each action of the second round something is as it was one round ago."""
    assert falls_at(PREFILL_FIRST, BEGIN + ROUND) == [6]
    assert falls_at(PREFILL_FIRST, BEGIN + ROUND * 2) == [6, 7, 8, 9]


def test_who_is_called_the_same_need_not_be_the_same() -> None:
    """`short` is there before each round and after it; but that is another one every time."""
    assert falls_at(PREFILL_FIRST, ROUND * 3) == []


def test_an_intervention_is_no_part_of_a_loop() -> None:
    """An abort, even of somebody unknown, and a reset, even a refused one, will not come for ever;
    after it the run must come back anew."""
    interventions: tuple[Action, ...] = (Abort("nobody"), ResetCache())
    for action in interventions:
        assert falls_at(PREFILL_FIRST, (*BEGIN, action, *ROUND)) == [7]
        assert falls_at(PREFILL_FIRST, (*BEGIN, *ROUND[:1], action, *ROUND[1:])) == []
        assert falls_at(PREFILL_FIRST, (*BEGIN, *ROUND[:1], action, *ROUND[1:], SHORT)) == [8]


def test_who_has_to_let_better_ones_go_first_is_not_starved() -> None:
    """One seat. `long` waits while others come: better ones go before it, equal ones do not."""
    machine = Machine(Config(3, 1, 3, 2, 1), prioritised(VLLM_0_33))
    better, worse = SHORT, evolve(LONG, priority=1)
    done = (Schedule(), Complete((Output("short", (0,)),)))
    assert falls_at(machine, (better, worse, *done, *(better, *done) * 3)) == []


def test_an_arrival_that_is_refused_is_no_way_round() -> None:
    """Nothing happened, so nothing came back."""
    longer = Submit("longer", (0,) * 9, 1)
    assert falls_at(PREFILL_FIRST, (*BEGIN, longer, longer)) == []
    assert falls_at(PREFILL_FIRST, (*BEGIN, longer, *ROUND)) == [7]


def test_an_empty_loop_starves_nobody() -> None:
    assert falls_at(PREFILL_FIRST, (Schedule(), Complete()) * 3) == []


def test_who_got_a_token_was_served() -> None:
    """Two rounds that differ in `long`'s output; then it ends."""
    machine = Machine(PREFILL_FIRST.config, VLLM_0_33)
    step = (Schedule(), Complete((Output("long", (0,)),)))
    longer = evolve(LONG, prompt=(0,), max_tokens=2)
    assert fall_in(machine, "LIV-1", (longer, *step, *step)) is None


def test_the_antecedent_is_that_somebody_waits() -> None:
    outcomes = asked(PREFILL_FIRST, BEGIN[:4])
    assert outcomes == [VACUOUS, VACUOUS, VACUOUS, HELD]
    assert asked(PREFILL_FIRST, (Schedule(), Complete())) == [VACUOUS, VACUOUS]


def asked(machine: Machine, actions: Iterable[Action]) -> list[Outcome]:
    state, outcomes = machine.initial(), list[Outcome]()
    monitor = LASSO.start(machine, state)
    for action in actions:
        moved = machine.apply(state, action)
        monitor, outcome = monitor.after(step_of(machine, state, action, moved))
        outcomes.append(outcome)
        state = moved.state
    return outcomes


def test_a_run_may_begin_anywhere() -> None:
    """Watched from a state in which somebody waits already."""
    state = PREFILL_FIRST.initial()
    for action in BEGIN:
        state = PREFILL_FIRST.apply(state, action).state
    monitor = LASSO.start(PREFILL_FIRST, state)
    last: Outcome = VACUOUS
    for action in ROUND:
        moved = PREFILL_FIRST.apply(state, action)
        monitor, last = monitor.after(step_of(PREFILL_FIRST, state, action, moved))
        state = moved.state
    assert last == Fall(STARVED)


def test_a_monitor_does_not_learn_from_a_run_that_is_not_its_own() -> None:
    """Two runs go on from one monitor. The first serves `other` and leaves its token in the cache;
    the second comes to that state later, and for the first time."""
    state = PREFILL_FIRST.initial()
    monitor = LASSO.start(PREFILL_FIRST, state)
    for action in BEGIN:
        moved = PREFILL_FIRST.apply(state, action)
        monitor, _ = monitor.after(step_of(PREFILL_FIRST, state, action, moved))
        state = moved.state
    served = (Submit("other", (1,), 1), Schedule(), Complete((Output("other", (0,)),)))
    assert went(state, monitor, served * 2) == [False] * 4 + [True] * 2
    assert went(state, monitor, ROUND + served) == [False, False, True] + [False] * 3
    assert went(state, monitor, ROUND) == [False, False, True]


def went(state: State, monitor: Monitor, actions: Iterable[Action]) -> list[bool]:
    said = list[bool]()
    for action in actions:
        moved = PREFILL_FIRST.apply(state, action)
        monitor, outcome = monitor.after(step_of(PREFILL_FIRST, state, action, moved))
        said.append(isinstance(outcome, Fall))
        state = moved.state
    return said


def test_a_long_run_is_not_remembered() -> None:
    """Only while somebody waits, and of that not much more than is needed."""
    machine = Machine(Config(9, 2, 8, 4, 2), VLLM_0_33)
    state = machine.initial()
    monitor = LASSO.start(machine, state)
    longest = 0
    for number in range(300):
        outputs = (Output(f"r{number}", (number % 7,)),)
        for action in (Submit(f"r{number}", (0, number % 5), 1), Schedule(), Complete(outputs)):
            moved = machine.apply(state, action)
            monitor, outcome = monitor.after(step_of(machine, state, action, moved))
            assert not isinstance(outcome, Fall)
            state = moved.state
            assert isinstance(monitor, Run)
            longest = max(longest, len(monitor.past.states))
    assert longest <= 3
    assert longest < SLACK


def test_who_is_served_seldom_keeps_some_of_the_past() -> None:
    """A decode of 200 tokens among others: each token is news, so the states before are let go."""
    machine = Machine(Config(300, 2, 400, 4, 2), evolve(VLLM_0_33, victim=Victim.NONE))
    state = machine.initial()
    monitor = LASSO.start(machine, state)
    actions: list[Action] = [Submit("r", (0,), 200)]
    for _ in range(200):
        actions += [Schedule(), Complete((Output("r", (0,)),))]
    for action in actions:
        moved = machine.apply(state, action)
        monitor, _ = monitor.after(step_of(machine, state, action, moved))
        state = moved.state
        assert isinstance(monitor, Run)
        assert len(monitor.past.states) <= SLACK + 5
