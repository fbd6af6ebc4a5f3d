"""Stories about admissions that look at all output to come: who runs is promised its blocks."""

from __future__ import annotations

import pytest
from attrs import evolve

from servecheck.engines.fast.refine import Refinement
from servespec.actions import Complete, Output, Schedule, Submit
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import VLLM_0_33, Admission
from servespec.properties import step_of

SIZES = Config(
    num_blocks=6, block_size=2, max_model_len=16, max_num_batched_tokens=8, max_num_seqs=4
)
"""Five blocks of two tokens."""


@pytest.mark.parametrize(
    ("first", "second", "admitted"),
    [
        (4, 2, True),  # three blocks, of which one is still to come; two more
        (4, 4, False),  # one to come, and three
        (6, 2, False),  # two to come, and two
        (2, 4, True),  # none to come, and three
        (2, 6, False),  # none to come, and four
    ],
)
def test_an_admission_leaves_what_is_promised(first: int, second: int, admitted: bool) -> None:
    """Given a prompt of three tokens that runs in two of five blocks; when another such prompt
    comes, then it is admitted if three blocks are enough for all it can come to use and for what
    the first one may still take."""
    machine = Machine(SIZES, evolve(VLLM_0_33, admission=Admission.WHOLE_REQUEST))
    engines, state = Refinement(machine, fresh=1), machine.initial()
    for action in (
        Submit("a", (1, 2, 3), first),
        Schedule(),
        Complete((Output("a", (7,)),)),
        Submit("b", (4, 5, 6), second),
        Schedule(),
    ):
        step = step_of(machine, state, action, machine.apply(state, action))
        engines.follow(step)
        state = step.after
    assert [r.id for r in state.running] == (["a", "b"] if admitted else ["a"])
