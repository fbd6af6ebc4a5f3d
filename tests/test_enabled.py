"""Stories about what a state offers: every enabled action, and every outcome of a plan."""

from __future__ import annotations

import pytest
from attrs import evolve

from servespec.actions import Abort, Action, Complete, Discard, Output, ResetCache, Schedule, Submit
from servespec.config import Config
from servespec.errors import ActionDisabled
from servespec.machine import Machine, Universe, fits_alone
from servespec.plan import PADDING, State
from servespec.policy import STATIC, VLLM_0_33

SIZES = Config(
    num_blocks=9, block_size=2, max_model_len=8, max_num_batched_tokens=8, max_num_seqs=4
)
DRAFTING = Config(9, 2, 8, 8, 4, num_speculative_tokens=1)
A, B = Submit("a", (1, 2, 3), 4), Submit("b", (1,), 4)


def after(machine: Machine, *actions: Action) -> State:
    state = machine.initial()
    for action in actions:
        state = machine.apply(state, action).state
    return state


def test_every_enabled_action_in_order() -> None:
    """Given two requests to come, a token and a reset; then they may come, a pass may be made, and
    the reset asked for. With a plan in flight its one outcome may come, or it may be discarded,
    but no other be made; who lives may be aborted, and does not come again. Each can be done."""
    machine, universe = Machine(SIZES, STATIC), Universe((A, B), (7,), (ResetCache(True),))
    assert list(machine.enabled(machine.initial(), universe)) == [
        A,
        B,
        Schedule(),
        ResetCache(True),
    ]
    state = after(machine, A, Schedule())
    offered = list(machine.enabled(state, universe))
    assert offered == [
        B,
        Complete((Output("a", (7,)),)),
        Discard(),
        Abort("a"),
        ResetCache(True),
    ]
    for action in offered:
        assert machine.apply(state, action).state != state or action == ResetCache(True)


def test_what_cannot_be_discarded_is_not_offered() -> None:
    machine = Machine(SIZES, VLLM_0_33)
    offered = list(machine.enabled(after(machine, A, Schedule()), Universe((), (7,), ())))
    assert offered == [Complete((Output("a", (7,)),)), Abort("a")]


def test_drafts_are_accepted_or_not_and_new_ones_come() -> None:
    """Given a pass over a token and its draft, and a vocabulary of one; then the draft is rejected
    or accepted, one token follows, and a draft comes for the next pass or none."""
    machine = Machine(DRAFTING, VLLM_0_33)
    state = after(machine, A, Schedule(), Complete((Output("a", (0,), (0,)),)), Schedule())
    assert list(machine.completions(state.in_flight[0], (0,))) == [
        Complete((Output("a", (0,)),)),
        Complete((Output("a", (0,), (0,)),)),
        Complete((Output("a", (0, 0)),)),
        Complete((Output("a", (0, 0), (0,)),)),
    ]


def test_padding_is_never_accepted() -> None:
    """Given an admission of one token padded to 1 + γ beside one that decodes; then every outcome
    has one token of it."""
    machine = Machine(DRAFTING, VLLM_0_33)
    state = after(machine, A, Schedule(), Complete((Output("a", (7,)),)), B, Schedule())
    assert state.in_flight[0].entries[1].drafts == (PADDING,)
    outcomes = list(machine.completions(state.in_flight[0], (7,)))
    assert len(outcomes) == 4
    assert {len(done.outputs[1].tokens) for done in outcomes} == {1}


def test_a_chunk_and_who_has_left_bring_nothing() -> None:
    """Given a plan of a prefill chunk and of one that leaves; then its one outcome is empty."""
    machine = Machine(SIZES, VLLM_0_33)
    long = Submit("c", (1,) * 8, 1)
    state = after(machine, A, long, Schedule(), Abort("a"))
    assert [entry.yields for entry in state.in_flight[0].entries] == [True, False]
    assert list(machine.completions(state.in_flight[0], (7, 8))) == [Complete()]


def test_what_is_no_action_is_told() -> None:
    machine = Machine(SIZES, VLLM_0_33)
    with pytest.raises(ActionDisabled, match="is no action"):
        machine.apply(machine.initial(), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "gamma", "prompt", "longest", "padded"),
    [
        (2, 1, (1, 2, 3), 5, True),
        (2, 1, (1, 2, 3), 4, False),
        (2, 2, (1, 2, 3), 6, True),
        (2, 2, (1, 2, 3), 5, False),
        (1, 1, (1, 2), 4, True),
        (1, 1, (1, 2), 3, False),
    ],
)
def test_an_admission_with_a_hit_is_padded_where_the_longest_text_leaves_room(
    size: int, gamma: int, prompt: tuple[int, ...], longest: int, padded: bool
) -> None:
    """Given a text of which all but its last token is found, and nobody who runs; then it is padded
    to 1 + γ where these and one token more do not go beyond the longest text."""
    sizes = Config(9, size, longest, 8, 4, num_speculative_tokens=gamma)
    machine = Machine(sizes, VLLM_0_33)
    state = after(
        machine,
        Submit("a", prompt, 1),
        Schedule(),
        Complete((Output("a", (7,)),)),
        Submit("b", prompt, 1),
        Schedule(),
    )
    (entry,) = state.in_flight[0].entries
    assert entry.start == len(prompt) - 1
    assert entry.drafts == ((PADDING,) * gamma if padded else ())


def test_a_request_fits_alone_if_its_longest_text_but_one_token_does() -> None:
    """Given texts of six tokens at most, in blocks of two; then a request that fills one needs
    three blocks, since five tokens are computed: two are too few. A shorter one needs two. Where
    prompts are not cut, all five must fit into one pass: it may be sent back at that length."""
    for blocks, max_tokens, fits in ((3, 9, False), (4, 9, True), (3, 1, True)):
        machine = Machine(Config(blocks, 2, 6, 8, 2), VLLM_0_33)
        assert fits_alone(machine, Submit("a", (1, 2, 3, 4), max_tokens)) is fits
    unchunked = evolve(VLLM_0_33, chunked_prefill=False)
    for budget, fits in ((4, False), (5, True)):
        machine = Machine(Config(4, 2, 6, budget, 2), unchunked)
        assert fits_alone(machine, Submit("a", (1, 2, 3, 4), 9)) is fits
