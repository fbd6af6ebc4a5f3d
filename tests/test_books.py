"""What the books of a step say, in small numbers: plans, blocks, what was sampled, what fits."""

from __future__ import annotations

import pytest
from attrs import evolve

from servespec.actions import Abort, Complete, Output, Schedule, Submit
from servespec.config import Config
from servespec.events import Admitted, Reason, Refused, Scheduled, Submitted
from servespec.machine import Machine
from servespec.plan import Plan
from servespec.policy import VLLM_0_33, Impossible, Policy
from servespec.properties import HELD, Fall, Step
from servespec.properties.books import BlockBooks
from tests.test_properties import answers, run, told


def test_two_that_are_admitted_before_either_is_scheduled_are_both_new_in_the_plan() -> None:
    """An engine may tell of both admissions first: the plan is the same."""
    *_, step = run(
        Machine(Config(9, 2, 8, 8, 2), VLLM_0_33),
        Submit("a", (1,), 2),
        Submit("b", (2,), 2),
        Schedule(),
    )
    a, a_runs, b, b_runs = step.events
    assert [type(e) for e in step.events] == [Admitted, Scheduled] * 2
    assert answers(step)["PLAN-2"] is HELD
    assert answers(told(step, a, b, a_runs, b_runs))["PLAN-2"] is HELD


def test_of_two_plans_in_flight_the_older_one_ends() -> None:
    """An engine may be a step ahead: what it has planned meanwhile stays in flight."""
    *_, step = run(
        Machine(Config(9, 2, 8, 8, 2), VLLM_0_33),
        Submit("a", (1,), 3),
        Schedule(),
        Complete((Output("a", (2,)),)),
    )
    (older,) = step.before.in_flight
    newer = Plan((evolve(older.entries[0], start=1, tokens=(2,), new_blocks=0, admitted=False),))
    before = evolve(step.before, in_flight=(older, newer))
    for left, said in (
        (newer, HELD),
        (older, Fall(f"{(older,)} is in flight, and {(newer,)} was told")),
    ):
        after = evolve(step.after, in_flight=(left,))
        ahead = Step(step.machine, before, step.action, after, step.events)
        assert answers(ahead)["PLAN-2"] == said


def test_a_block_is_free_when_the_last_table_that_held_it_is_let_go() -> None:
    machine = Machine(Config(5, 2, 8, 8, 2), VLLM_0_33)
    books = BlockBooks.of(machine.policy, machine.initial())
    assert books.queue == [1, 2, 3, 4]
    books.hold((2, 1))
    books.hold((2,))
    assert books.queue == [3, 4]
    books.release((2, 1))
    assert books.queue == [1, 3, 4]
    books.release((2,))
    assert books.queue == [2, 1, 3, 4]


def test_what_is_sampled_for_who_has_left_is_nobodys() -> None:
    """a was aborted while its step ran: the sampler does not know, and brings a token for it."""
    *_, step = run(
        Machine(Config(9, 2, 8, 8, 2), VLLM_0_33),
        Submit("a", (1, 2), 3),
        Submit("b", (3, 4), 3),
        Schedule(),
        Abort("a"),
        Complete((Output("a", (5,)), Output("b", (6,)))),
    )
    assert answers(step)["REQ-1"] is HELD
    silent = told(step)
    assert answers(silent)["REQ-1"] == Fall("(6,) was sampled for b, and () delivered")


# --- what can never fit --------------------------------------------------------------------


@pytest.mark.parametrize(("most", "fits"), [(2, True), (3, False)])
def test_drafts_and_look_ahead_count_to_what_a_request_needs(most: int, fits: bool) -> None:
    """Six blocks of one slot. Three tokens and one or two of output, of which the last needs no
    slot, leave one for a draft and one for looking ahead; a token more does not."""
    sizes = Config(7, 1, 9, 9, 2, num_speculative_tokens=1, num_lookahead_tokens=1)
    policy: Policy = evolve(VLLM_0_33, impossible=Impossible.REFUSE)
    (step,) = run(Machine(sizes, policy), Submit("a", (1, 2, 3), most))
    due = Submitted("a") if fits else Refused("a", Reason.IMPOSSIBLE)
    other = Refused("a", Reason.IMPOSSIBLE) if fits else Submitted("a")
    assert step.events == (due,)
    assert answers(step)["RST-1"] is HELD
    assert answers(told(step, other))["RST-1"] == Fall(f"{(other,)} was told, and {(due,)} was due")
