"""Stories about the open machine: all that a pass may do next, whatever an engine would choose."""

from __future__ import annotations

from attrs import evolve

from servespec.actions import Action, Complete, Output, Schedule, Submit
from servespec.config import Config
from servespec.events import Reason
from servespec.machine import Machine
from servespec.moves import Admit, Close, Extend, Pass, Preempt, Skip, step
from servespec.open import NOT_ADMITTED, PASSED_OVER, permitted, starts
from servespec.plan import PADDING
from servespec.policy import VLLM_0_33, HitCap, Phase, Policy, Publish

SIZES = Config(
    num_blocks=5, block_size=2, max_model_len=8, max_num_batched_tokens=3, max_num_seqs=2
)
"""Four blocks of two tokens: block 0 is kept out."""
A, B = Submit("a", (1, 2, 3), 4), Submit("b", (1, 2, 9), 4)
OVER = tuple(map(Skip, PASSED_OVER))
NOBODY = (*map(Skip, NOT_ADMITTED), *map(Close, NOT_ADMITTED))


def passes(config: Config, *actions: Action, policy: Policy = VLLM_0_33) -> tuple[Pass, Pass]:
    """The two ways to begin a pass after these actions: with who runs, with who waits."""
    machine = Machine(config, policy)
    state = machine.initial()
    for action in actions:
        state = machine.apply(state, action).state
    running, waiting = starts(config, policy, state)
    assert (running.state, waiting.state) == (state, state)
    assert running.tokens_left == waiting.tokens_left == config.max_num_batched_tokens
    return running, waiting


def served(config: Config = SIZES, drafts: tuple[int, ...] = ()) -> tuple[Pass, Pass]:
    """a runs with four tokens, of which three are computed, in two blocks; b waits, whose first
    block is a's; two blocks are free."""
    return passes(config, A, Schedule(), Complete((Output("a", (4,), drafts),)), B)


def test_a_pass_begins_with_either_list() -> None:
    running, waiting = served()
    assert running.phases == (Phase.RUNNING, Phase.ADMISSION)
    assert waiting.phases == (Phase.ADMISSION, Phase.RUNNING)


def test_who_runs_is_extended_or_sent_back_or_passed_over() -> None:
    """Given one token of a to compute; then it is that one, or a gives way to itself."""
    running, _ = served()
    assert permitted(running) == (Extend(1), Preempt(0, 1), *OVER)


def test_any_number_of_tokens_that_there_are_and_that_are_left() -> None:
    """Given a token and two drafts, and three tokens in the budget; then one, two or three may be
    computed; of a budget of two, two at most; below a longest text of five, two at most as well."""
    drafting = evolve(SIZES, num_speculative_tokens=2)
    running, _ = served(drafting, (5, 6))
    assert permitted(running)[:6] == (
        *map(Extend, (1, 2, 3)),
        *(Preempt(0, tokens) for tokens in (1, 2, 3)),
    )
    fewer = evolve(running, tokens_left=2)
    assert permitted(fewer)[:4] == (*map(Extend, (1, 2)), Preempt(0, 1), Preempt(0, 2))
    short, _ = served(evolve(drafting, max_model_len=5), (5, 6))
    assert permitted(short)[:4] == (*map(Extend, (1, 2)), Preempt(0, 1), Preempt(0, 2))


def test_what_takes_more_blocks_than_are_free_is_not_offered() -> None:
    """Given three tokens that want a third block, and none that is free; then one token goes into
    the second block, and any other number asks for room."""
    drafting = evolve(SIZES, num_speculative_tokens=2, num_blocks=3)
    running, _ = served(drafting, (5, 6))
    assert running.state.pool.free == ()
    assert permitted(running)[:4] == (Extend(1), *(Preempt(0, n) for n in (1, 2, 3)))
    one = evolve(drafting, num_blocks=4)
    assert permitted(served(one, (5, 6))[0])[:3] == tuple(map(Extend, (1, 2, 3)))


def test_anybody_who_runs_may_be_sent_back() -> None:
    both = (A, Schedule(), Complete((Output("a", (4,)),)), B, Schedule())
    done = Complete((Output("a", (5,)), Output("b", (6,))))
    running, _ = passes(evolve(SIZES, num_blocks=9), *both, done)
    assert [r.id for r in running.state.running] == ["a", "b"]
    assert permitted(running) == (Extend(1), Preempt(0, 1), Preempt(1, 1), *OVER)


def test_who_waits_is_admitted_with_any_part_of_what_is_found() -> None:
    """Given that b's first block is a's; then b is admitted with it and one token, or without it
    and up to three; or nobody is, for whatever reason."""
    _, waiting = served()
    without = tuple(Admit((), tokens, ()) for tokens in (1, 2, 3))
    assert permitted(waiting) == (Admit((1,), 1, ()), *without, *NOBODY)
    assert permitted(evolve(waiting, tokens_left=2))[:3] == (Admit((1,), 1, ()), *without[:2])


def test_what_stands_behind_a_gap_is_not_found() -> None:
    """Given a text whose first block is a's and whose second one nobody has; then it is admitted
    with the first, or with nothing; and a text that shares nothing with nothing."""
    waits = Submit("c", (1, 2, 9, 9, 9), 2), Submit("d", (9, 9, 9, 9, 9), 2)
    _, waiting = passes(SIZES, A, Schedule(), Complete((Output("a", (4,)),)), *waits)
    for cursor, found in enumerate([{(1,), ()}, {()}]):
        there = permitted(evolve(waiting, cursor=cursor))
        assert {move.hits for move in there if isinstance(move, Admit)} == found


def test_who_is_passed_over_wants_nothing_any_more() -> None:
    """Given b sent back to make room for two tokens of a; when a is passed over all the same, then
    the pass goes on behind it, and nobody makes room for it."""
    both = (A, Submit("b", (5, 6, 7), 4), Schedule())
    done = Complete((Output("a", (4,)), Output("b", (8,))))
    running, _ = passes(evolve(SIZES, max_num_batched_tokens=8), *both, done)
    made = step(running, Preempt(1, 2))
    assert (made.cursor, made.retry) == (0, 2)
    over = step(made, Skip(Reason.NO_BLOCKS))
    assert (over.cursor, over.retry) == (1, None)


def test_without_room_only_what_fits_is_admitted() -> None:
    """Given one free block; then the hit and a token fit, and without it two tokens at most."""
    _, waiting = served(evolve(SIZES, num_blocks=4))
    assert permitted(waiting)[:-14] == (Admit((1,), 1, ()), Admit((), 1, ()), Admit((), 2, ()))


def test_without_a_seat_nobody_is_admitted() -> None:
    _, waiting = served(evolve(SIZES, max_num_seqs=1))
    assert permitted(waiting) == NOBODY


def test_an_admission_may_be_padded() -> None:
    """Given γ = 1; then each admission may also have a padded draft, and a token more."""
    _, waiting = served(evolve(SIZES, num_speculative_tokens=1))
    pad = (PADDING,)
    assert permitted(waiting)[:-14] == (
        Admit((1,), 1, ()),
        *(Admit((1,), tokens, pad) for tokens in (1, 2)),
        *(Admit((), tokens, ()) for tokens in (1, 2, 3)),
        *(Admit((), tokens, pad) for tokens in (1, 2, 3)),
    )


def test_any_copy_may_be_found_and_none_behind_a_gap_or_the_cap() -> None:
    """Given the same text twice in one pass, in blocks of one token, so that its blocks are there
    in copies; when it comes once more, then of its three blocks two may be found under the cap, or
    all three without one, each in either copy, and any prefix of these."""
    twice = (
        Submit("a", (1, 2, 3), 2),
        Submit("b", (1, 2, 3), 2),
        Schedule(),
        Submit("c", (1, 2, 3), 2),
    )
    sizes = Config(12, 1, 8, 12, 4)
    # Nothing is shared within the pass: what is published after the step is not yet there.
    late = evolve(VLLM_0_33, publish=Publish.AFTER_STEP)
    machine = Machine(sizes, late)
    state = machine.initial()
    for action in (*twice[:3], Complete((Output("a", (7,)), Output("b", (8,)))), twice[3]):
        state = machine.apply(state, action).state
    assert [r.table for r in state.running] == [(1, 2, 3), (4, 5, 6)]
    for cap, longest in ((HitCap.LAST_TOKEN, 2), (HitCap.NONE, 3)):
        _, waiting = starts(sizes, evolve(late, hit_cap=cap), state)
        hits = [m.hits for m in permitted(waiting) if isinstance(m, Admit)]
        found = list(dict.fromkeys(hits))
        assert [len(blocks) for blocks in found] == [
            length for length in range(longest, -1, -1) for _ in range(2**length)
        ]
        assert {blocks for blocks in found if len(blocks) == 1} == {(1,), (4,)}
        assert {(1, 2), (1, 5), (4, 2), (4, 5)} <= set(found)


def test_when_both_lists_are_done_nothing_is_permitted() -> None:
    running, _ = served()
    assert permitted(evolve(running, phases=())) == ()
    assert permitted(evolve(running, cursor=1)) == (Close(),)
