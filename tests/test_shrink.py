"""Stories about ways to fewer actions where leaving some out is not enough, and out of a local
minimum. What is only left out and mended is told in test_trace.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from servecheck.fuzz.shrink import kind
from servecheck.lockstep.compare import Difference
from servecheck.lockstep.subject import Subject, parted
from servecheck.trace.fewer import apart, brought_along, fewer_actions, merged, passes, sooner
from servecheck.trace.machines import larger_machines, shrink_world, smaller_machines
from servecheck.trace.shrink import StillFails, mend, shrink
from servecheck.trace.sideways import sideways
from servecheck.trace.simpler import Actions
from servespec.actions import Action, Complete, Discard, Output, Schedule, Submit
from servespec.config import Config
from servespec.events import Preempted
from servespec.machine import Machine
from servespec.policy import VLLM_0_33, prioritised
from tests import broken_engines as broken


def out(**said: int | tuple[int, ...]) -> Complete:
    return Complete(tuple(Output(i, t if isinstance(t, tuple) else (t,)) for i, t in said.items()))


# --- ways to fewer actions ------------------------------------------------------------------


def test_a_pass_ends_where_its_outcome_comes() -> None:
    actions = (Submit("a", (1,), 3), Schedule(), out(a=1), Schedule(), Discard(), Schedule(), out())
    assert passes(actions) == ((1, 2), (5, 6))


def test_what_a_pass_brought_comes_with_the_prompt() -> None:
    """a has read 1, written 2 3 and goes on with 4. Without its second pass it comes with 1 2, and
    writes 3 in the first: its text is what it was. b, who came later, is as it was."""
    actions: Actions = (
        Submit("a", (1,), 4),
        Schedule(),
        out(a=2),
        Schedule(),
        out(a=3),
        Submit("b", (7,), 1),
        Schedule(),
        out(a=4, b=8),
    )
    assert brought_along(actions, ((3, 4),)) == (
        Submit("a", (1, 2), 3),
        Schedule(),
        out(a=3),
        Submit("b", (7,), 1),
        Schedule(),
        out(a=4, b=8),
    )
    # Without any of the first two, it is read like a prompt.
    assert brought_along(actions, ((1, 2), (3, 4)))[0] == Submit("a", (1, 2, 3), 2)


def test_who_had_all_of_its_output_in_passes_that_go_does_not_come() -> None:
    actions = (Submit("a", (1,), 1), Schedule(), out(a=2), Submit("b", (3,), 1), Schedule())
    assert brought_along(actions, ((1, 2),)) == (Submit("b", (3,), 1), Schedule())


def test_two_requests_become_one() -> None:
    actions = (
        Submit("a", (1,), 1),
        Schedule(),
        out(a=2),
        Submit("b", (3,), 2),
        Schedule(),
        out(b=4),
    )
    assert tuple(merged(actions)) == (
        (Submit("a", (1,), 1), Schedule(), out(a=2), Schedule(), out(a=4)),
        (Submit("a", (3,), 2), Schedule(), out(a=2), Schedule(), out(a=4)),
    )


def test_a_late_request_comes_before_a_pass_that_goes() -> None:
    actions = (Submit("a", (1,), 2), Schedule(), Submit("b", (3,), 1), out(a=2), Schedule())
    first, without, brought = tuple(sooner(actions))[:3]
    assert first == (Submit("a", (1,), 2), Submit("b", (3,), 1), Schedule(), out(a=2), Schedule())
    assert without == (Submit("a", (1,), 2), Submit("b", (3,), 1), Schedule())
    assert brought == (Submit("a", (1, 2), 1), Submit("b", (3,), 1), Schedule())


def test_texts_that_share_nothing() -> None:
    actions = (Submit("a", (5, 6), 1), Submit("b", (5,), 2), Schedule(), out(b=(5, 6)))
    assert apart(actions) == (
        Submit("a", (0, 0), 1),
        Submit("b", (1,), 2),
        Schedule(),
        out(b=(1, 1)),
    )


def test_every_way_is_one_to_fewer_actions_or_an_earlier_request() -> None:
    actions = (Submit("a", (1,), 2), Schedule(), Submit("b", (3,), 1), out(a=2), Schedule(), out())
    assert all(len(way) <= len(actions) for way in fewer_actions(actions))
    assert any(len(way) == len(actions) - 4 for way in fewer_actions(actions))


def victims(machine: Machine) -> StillFails:
    """Somebody is preempted who has text of a whole block."""

    def preempted(actions: Sequence[Action]) -> bool:
        state = machine.initial()
        for action in actions:
            moved = machine.apply(state, action)
            for event in moved.events:
                gone = state.find(event.id) if isinstance(event, Preempted) else None
                if gone is not None and gone.length >= 4:
                    return True
            state = moved.state
        return False

    return preempted


def test_a_long_decode_becomes_a_prompt() -> None:
    """Two requests decode until the pool is full, which takes a pass for every two tokens; the same
    texts, as prompts, fill it at once."""
    machine = Machine(Config(5, 2, 8, 16, 4), VLLM_0_33)
    actions: list[Action] = [Submit("a", (1,), 7), Submit("b", (2,), 7)]
    for token in range(5):
        actions += [Schedule(), out(a=token, b=token)]
    whole = mend(machine, actions)
    assert victims(machine)(whole)
    assert len(whole) == 12
    assert len(shrink(machine, whole, victims(machine))) == 5


# --- the machine ----------------------------------------------------------------------------


def test_smaller_blocks_take_the_run_with_them() -> None:
    """Blocks of 4 become blocks of 1: the longest text is as many blocks as before, and so is a
    prompt."""
    machine = Machine(Config(9, 4, 16, 8, 2), VLLM_0_33)
    scaled = [
        (smaller.config, changes)
        for smaller, changes in smaller_machines(machine)
        if smaller.config.block_size == 1 and smaller.config.max_model_len == 4
    ]
    config, (change,) = scaled[0]
    assert config == Config(9, 1, 4, 2, 2)
    assert change((Submit("a", (1, 2, 3, 4, 5, 6), 1),)) == (Submit("a", (1, 5), 1),)


def test_a_size_stays_of_its_kind() -> None:
    """Given a watermark, which is a part, when it is made smaller, then it is 0.0 and not 0: the
    same failure is written alike however it was come to."""
    machine = Machine(Config(9, 2, 8, 8, 2, watermark=0.2), VLLM_0_33)
    watermarks = [smaller.config.watermark for smaller, _ in smaller_machines(machine)]
    assert {0.0, 0.2} == set(watermarks)
    assert {type(watermark) for watermark in watermarks} == {float}


def test_a_budget_that_holds_a_prompt_saves_passes() -> None:
    """A prompt of 4 blocks, read 2 tokens a pass, until the pool has no block left."""

    def full(machine: Machine) -> StillFails:
        def still(actions: Sequence[Action]) -> bool:
            state, found = machine.initial(), False
            for action in actions:
                state = machine.apply(state, action).state
                found = found or not state.pool.free
            return found and machine.config.num_blocks == 5 and machine.config.block_size == 2

        return still

    machine = Machine(Config(5, 2, 8, 2, 1), VLLM_0_33)
    prompt = Submit("a", (0,) * 8, 1)
    actions = mend(machine, (prompt, *(Schedule(), Complete()) * 3, Schedule()))
    assert {m.config.max_num_batched_tokens for m in larger_machines(machine)} >= {4, 8}
    found, least = shrink_world(machine, actions, full)
    assert len(least) == 2
    assert found.config.max_num_batched_tokens > 2


# --- out of a local minimum -----------------------------------------------------------------

BALANCED = Machine(
    Config(10, 2, 10, 5, 3, num_speculative_tokens=1),
    prioritised(VLLM_0_33),
)
STUCK: Actions = (
    Submit("r0", (0,) * 4, 5, priority=1),
    Schedule(),
    out(r0=0),
    Submit("r1", (0, 1, 0, 0, 0), 2),
    Submit("r2", (0, 2, 0, 0), 1),
    Schedule(),
    Complete((Output("r0", (0,), (0,)),)),
    Schedule(),
    Complete((Output("r0", (0, 0), (0,)), Output("r1", (0,), (0,)))),
    Schedule(),
)
"""A budget is lost: r0 gives way to r1, and its tokens are missing for r2. With a pass less the
pool is not full at the end, with a block less it is full too soon."""


def test_out_of_a_local_minimum_it_goes_sideways() -> None:
    subject = Subject.of(broken.BudgetLost)

    def fails(machine: Machine) -> StillFails:
        return lambda actions: parted(subject, machine, actions) is not None

    least = shrink(BALANCED, STUCK, fails(BALANCED))
    assert len(least) == len(STUCK), "no single change helps"
    found = sideways(BALANCED, least, fails)
    assert found is not None
    assert len(found[1]) < len(STUCK)
    assert fails(found[0])(found[1])
    assert found == sideways(BALANCED, least, fails), "it is a function of the run"


# --- the same failure -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "what"),
    [
        ("plan of r0: tokens", "tokens"),
        ("r0: computed", "computed"),
        ("end of r0", "end"),
        ("key on blocks (1, 2)", "key"),
        ("free queue", "free queue"),
    ],
)
def test_what_differs_is_the_same_whoever_it_is_about(field: str, what: str) -> None:
    assert kind(Difference(field, 1, 2)) == what
