"""Stories about chunked prefill and drafts under the roofline: the plans are the machine's own, and
what is said to be monotone is checked budget by budget.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, pairwise

import pytest
from attrs import evolve

from servespec.actions import Complete, Output, Schedule, Submit
from servespec.config import Config
from servespec.errors import ConfigError
from servespec.machine import Machine
from servespec.policy import VLLM_0_33
from servespec.theory.break_even import (
    last_paying_batch,
    pays,
    speedup_at,
    verification_time,
)
from servespec.theory.chunking import BUDGETS, Trade, exceptions, saves_nothing, trades
from servespec.theory.devices import Device, device
from servespec.theory.memory import Deployment
from servespec.theory.models import model
from servespec.theory.roofline import Chunk, decodes, milliseconds, of_plan, step_time, work
from servespec.theory.shapes import Grouped, Model
from servespec.theory.speculation import speedup

A100 = device("a100-80gb-sxm")
LLAMA = Deployment(model("llama-3-8b"), A100)
TOY = Model("toy", 2, 8, Grouped(2, 1, 4), 16, 10, 10_000, "made up for these tests")


def toy(flops: int) -> Deployment:
    """The toy model on a chip whose bandwidth is 7 bytes a second."""
    return Deployment(TOY, Device("chip", flops, 7, 10**6, "made up for these tests"))


def table(rows: list[Trade]) -> list[tuple[int, int, str, str]]:
    def shown(time: Fraction | None) -> str:
        return "-" if time is None else f"{milliseconds(time):.2f}"

    return [(r.budget, len(r.chunks), shown(r.pause), shown(r.first_token)) for r in rows]


# --- a plan has a price ------------------------------------------------------------------------


def test_a_plan_of_the_machine_is_priced_as_it_stands() -> None:
    """Under a budget of 6, user a decodes and b gets five of its eight prompt tokens."""
    config = Config(
        num_blocks=9, block_size=4, max_model_len=32, max_num_batched_tokens=6, max_num_seqs=4
    )
    machine = Machine(config, VLLM_0_33)
    state = machine.initial()
    for action in (
        Submit("a", (1, 2, 3), max_tokens=4),
        Schedule(),
        Complete((Output("a", (4,)),)),
        Submit("b", (5,) * 8, max_tokens=4),
        Schedule(),
    ):
        state = machine.apply(state, action).state
    step = of_plan(state.in_flight[0])
    assert step == (Chunk(3, 1), Chunk(0, 5))
    assert step_time(LLAMA, step) == step_time(LLAMA, (*decodes(1, 4), Chunk(0, 5)))


# --- the trade of a token budget ---------------------------------------------------------------


def test_the_trade_of_the_article() -> None:
    """A prompt of 4,096 among 32 users at 2,000. The first token is *not* monotone: from 1,024 to
    4,096 the last chunk gets so small that its step only reads the weights."""
    rows = list(trades(LLAMA, 32, 2_000, 4_096))
    assert table(rows) == [
        (256, 19, "14.76", "265.10"),
        (512, 9, "29.37", "240.74"),
        (1_024, 5, "58.61", "236.77"),
        (2_048, 3, "115.78", "236.98"),
        (4_096, 2, "224.83", "237.09"),
        (8_192, 1, "226.70", "226.70"),
        (16_384, 1, "226.70", "226.70"),
    ]
    assert tuple(r.budget for r in rows) == BUDGETS
    assert exceptions(rows) == ((), ((1_024, 2_048), (2_048, 4_096)))
    assert rows[2].chunks == (992, 992, 992, 992, 128)


def test_steps_are_those_of_the_roofline() -> None:
    """Users grow by a token a step, the prompt by a chunk."""
    (row,) = trades(LLAMA, 3, 50, 40, (23,))
    assert row.chunks == (20, 20)
    assert row.steps == (
        step_time(LLAMA, (*decodes(3, 50), Chunk(0, 20))),
        step_time(LLAMA, (*decodes(3, 51), Chunk(20, 20))),
    )
    assert row.pause == max(row.steps)
    assert row.first_token == sum(row.steps)


def test_a_larger_budget_with_a_shorter_pause() -> None:
    """4,096 tokens as 2,048 + 2,048, and as 2,049 + 2,047: the second step is the longer one."""
    rows = list(trades(LLAMA, 32, 2_000, 4_096, (2_080, 2_081)))
    assert [r.chunks for r in rows] == [(2_048, 2_048), (2_049, 2_047)]
    assert [r.bound_by_memory for r in rows] == [0, 0]
    assert exceptions(rows) == (((2_080, 2_081),), ())
    assert rows[0].first_token == rows[1].first_token


def test_a_larger_budget_with_a_later_first_token() -> None:
    """As 2,048 + 2,048, and as 4,095 + 1: the last token costs a read of all weights."""
    rows = list(trades(LLAMA, 32, 2_000, 4_096, (2_080, 4_127)))
    assert [r.chunks for r in rows] == [(2_048, 2_048), (4_095, 1)]
    assert [r.bound_by_memory for r in rows] == [0, 1]
    assert exceptions(rows) == ((), ((2_080, 4_127),))


def test_where_all_waits_for_memory_fewer_steps_keep_contexts_shorter() -> None:
    rows = list(trades(LLAMA, 32, 2_000, 640, (64, 96, 128)))
    assert all(r.bound_by_memory == len(r.steps) for r in rows)
    assert exceptions(rows) == (((64, 96), (96, 128)), ())


@pytest.mark.parametrize(
    ("flops", "shorter", "later", "shown"),
    [(7, 6, 0, 1_540), (60, 13, 14, 528), (200, 12, 36, 21), (700, 13, 36, 0)],
)
def test_every_budget_of_a_small_prompt(flops: int, shorter: int, later: int, shown: int) -> None:
    """A prompt of 50 among 3 users, under each budget from 3 to 59. Of the 1,596 pairs of budgets
    those without a step that waits for memory obey ARI-3; of the neighbours so many are odd."""
    rows = list(trades(toy(flops), 3, 20, 50, range(3, 60)))
    answers = [saves_nothing(one, other) for one, other in combinations(rows, 2)]
    assert answers.count(False) == 0
    assert answers.count(True) == shown
    assert tuple(map(len, exceptions(rows))) == (shorter, later)
    assert all(sum(r.chunks) == 50 for r in rows[1:])
    assert all(small.steps[0] <= large.steps[0] for small, large in pairwise(rows))


@pytest.mark.parametrize(
    ("chunks", "seconds", "holds"),
    [
        (2, 9, True),
        (2, 10, False),
        (2, 11, False),
        (3, 9, False),
        (3, 10, True),
        (3, 11, False),
        (4, 9, False),
        (4, 10, False),
        (4, 11, True),
    ],
)
def test_what_a_first_token_would_have_to_be(chunks: int, seconds: int, holds: bool) -> None:
    """ARI-3 is false of times that are made up: beside three chunks and ten seconds, fewer chunks
    must be sooner, as many as soon, more later."""

    def trade(count: int, total: int) -> Trade:
        steps = (Fraction(total, count),) * count
        return Trade(99, steps, (1,) * count, bound_by_memory=0, left_out=0)

    assert saves_nothing(trade(chunks, seconds), trade(3, 10)) is holds


def test_where_nothing_waits_for_memory_first_tokens_are_monotone() -> None:
    rows = list(trades(toy(7), 3, 20, 50, range(4, 60)))
    assert not any(r.bound_by_memory for r in rows)
    first = [r.first_token for r in rows]
    assert all(a is not None and b is not None and b <= a for a, b in pairwise(first))


def test_a_budget_that_the_users_take_whole() -> None:
    """Five users: under 5 the newcomer gets nothing, under 4 neither does the youngest user."""
    four, five, six = trades(toy(60), 5, 20, 10, (4, 5, 6))
    assert (four.pause, four.first_token, four.left_out) == (None, None, 1)
    assert (five.pause, five.first_token) == (step_time(toy(60), decodes(5, 20)), None)
    assert len(six.chunks) == 10
    assert exceptions((four, five, six)) == ((), ())
    assert saves_nothing(four, six) is None


def test_a_step_that_waits_for_both_alike_is_not_bound_by_memory() -> None:
    """A chip that takes a second for the arithmetic of three decodes, and one for their bytes; and
    one whose memory is a little slower."""
    done = work(toy(7), decodes(3, 20))
    assert done.bytes.denominator == 1
    for bandwidth, waits in ((done.bytes.numerator, 0), (done.bytes.numerator - 1, 1)):
        chip = Device("chip", done.flops, bandwidth, 10**6, "made up for this test")
        (row,) = trades(Deployment(TOY, chip), 3, 20, 10, (3,))
        assert row.bound_by_memory == waits
        assert (row.steps[0] > 1) is bool(waits)


def test_who_gets_no_prompt_token_needs_no_longer_context() -> None:
    """A user at the end of the model's context, who takes the whole budget: one step is priced."""
    (row,) = trades(LLAMA, 1, 8_192, 8, (1,))
    assert (row.steps, row.chunks) == ((step_time(LLAMA, decodes(1, 8_192)),), ())


def test_as_many_users_as_the_machine_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servespec.theory.chunking.MOST_USERS", 3)
    (row,) = trades(LLAMA, 3, 20, 10, (13,))
    assert row.chunks == (10,)
    with pytest.raises(ConfigError, match=r"^batch: 4 users are more than .*; give at most 3"):
        list(trades(LLAMA, 4, 20, 10, (14,)))


@pytest.mark.parametrize("context", range(2, 40))
def test_the_machine_has_room_for_all_steps(context: int) -> None:
    """Wherever in their last block the users' prompts end, they decode beside every chunk: 17
    tokens of the newcomer's prompt take 17 steps of one."""
    (row,) = trades(toy(7), 2, context, 17, (3,))
    assert (row.chunks, row.left_out) == ((1,) * 17, 0)
    assert row.steps == tuple(
        step_time(toy(7), (*decodes(2, context + step), Chunk(step, 1))) for step in range(17)
    )


@pytest.mark.parametrize(
    ("batch", "context", "prompt", "budget", "what"),
    [
        (0, 20, 10, 8, "batch: 0 is no whole number from 1"),
        (1_025, 20, 10, 8, "batch: 1025 users are more than .*; give at most 1024"),
        (1, 1, 10, 8, "context: 1 is no whole number from 2"),
        (1, 8_193, 10, 8, "context: 8193 tokens are beyond"),
        (1, 8_192, 8, 8, "context, a token longer each step: 8193 tokens are beyond"),
        (1, 20, 8_193, 8, "prompt: 8193 tokens are beyond"),
        (1, 20, 10, 0, "budget: 0 is no whole number from 1"),
    ],
)
def test_a_trade_that_makes_no_sense(
    batch: int, context: int, prompt: int, budget: int, what: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{what}"):
        list(trades(LLAMA, batch, context, prompt, (budget,)))


# --- where drafts stop to pay -------------------------------------------------------------------


def test_left_of_the_ridge_the_speed_up_is_that_of_the_paper() -> None:
    """One sequence: α .75, c .02, γ 7 is 3.157 in the paper's theorem; reading the drafts'
    own cache makes it a little less."""
    alpha, cost = Fraction(3, 4), Fraction(1, 50)
    ideal, here = speedup(alpha, 7, cost), speedup_at(LLAMA, 1, 2_000, 7, alpha, cost)
    assert f"{float(ideal):.3f}" == f"{float(here):.3f}" == "3.157"
    assert here < ideal


def test_six_drafts_fit_beside_32_sequences_but_for_their_attention() -> None:
    """Linear layers alone allow 233 tokens a step, so γ ≤ 6; with attention it is γ ≤ 5."""
    times = [float(verification_time(LLAMA, 32, 2_000, g)) for g in range(8)]
    growth = [f"{t / times[0]:.2f}" for t in times]
    assert growth == ["1.00", "1.00", "1.00", "1.00", "1.00", "1.00", "1.02", "1.17"]


@pytest.mark.parametrize("flops", [7, 60, 700])
@pytest.mark.parametrize("context", [1, 20, 200])
def test_one_draft_decides_whether_any_number_pays(flops: int, context: int) -> None:
    d = toy(flops)
    for batch in (1, 2, 5, 13, 40, 1_000):
        for alpha, cost in ((0, 0), (1, 0), (1, 1), (3, 0), (3, 1), (5, 2), (9, 0), (9, 8)):
            a, c = Fraction(alpha, 10), Fraction(cost, 10)
            any_pays = any(speedup_at(d, batch, context, g, a, c) > 1 for g in range(1, 25))
            assert pays(d, batch, context, a, c) is any_pays


@pytest.mark.parametrize("flops", [7, 60, 700])
@pytest.mark.parametrize("context", [1, 20, 200])
def test_the_last_batch_that_pays_one_by_one(flops: int, context: int) -> None:
    d = toy(flops)
    for alpha, cost in ((1, 0), (1, 1), (5, 2), (8, 1), (9, 0), (10, 0)):
        a, c = Fraction(alpha, 10), Fraction(cost, 10)
        last = last_paying_batch(d, context, a, c)
        paying = [pays(d, batch, context, a, c) for batch in range(1, 200)]
        assert paying == sorted(paying, reverse=True)
        assert sum(paying) == min(199, 10**12 if last is None else last)
        if last is None:
            assert pays(d, 10**12, context, a, c)
        else:
            assert not pays(d, last + 1, context, a, c)


@pytest.mark.parametrize("batch", [0, 1, 2, 3, 4, 9])
def test_a_draft_that_gains_nothing_does_not_pay(batch: int) -> None:
    """At batch + 1 one draft costs exactly what it brings, α; at smaller ones it costs less."""
    d, cost = toy(60), Fraction(1, 10)
    dear, plain = (verification_time(d, batch + 1, 20, drafts) for drafts in (1, 0))
    alpha = dear / plain - 1 + cost
    assert speedup_at(d, batch + 1, 20, 1, alpha - cost, Fraction(0)) == 1
    assert not pays(d, batch + 1, 20, alpha, cost)
    assert last_paying_batch(d, 20, alpha, cost) == batch


@pytest.mark.parametrize(
    ("flops", "bandwidth", "alpha", "reached"),
    [(21, 7, Fraction(1), True), (700, 7, Fraction(1, 5), False), (None, None, Fraction(1), False)],
    ids=["by arithmetic", "by memory", "by both alike"],
)
def test_a_gain_that_is_the_limit_itself(
    flops: int | None, bandwidth: int | None, alpha: Fraction, reached: bool
) -> None:
    """Two layers with a window of five, a text of twenty: two tokens take twice the arithmetic of
    one, and six positions where one takes five. As the batch grows and the weights are shared by
    ever more, T₂/T₁ comes near 2 or 6/5. If arithmetic bounds one token it gets there, and drafts
    that gain just so much stop to pay; if memory does, or both but for the weights, it does not."""
    shape = evolve(TOY, window=5, windowed_layers=2)
    one, two = (work(Deployment(shape, A100), (Chunk(19, tokens),)) for tokens in (1, 2))
    assert (two.flops, two.kv_read) == (2 * one.flops, one.kv_read * Fraction(6, 5))
    assert one.kv_read.denominator == 1
    chip = Device("chip", flops or one.flops, bandwidth or one.kv_read.numerator, 10**6, "made up")
    d, cost = Deployment(shape, chip), Fraction(0)
    last = last_paying_batch(d, 20, alpha, cost)
    assert (last is not None) is reached
    assert pays(d, 10**12 if last is None else last, 20, alpha, cost)
    assert last is None or not pays(d, last + 1, 20, alpha, cost)


def test_drafts_stop_to_pay_at_short_contexts_only() -> None:
    """Llama-3-8B on an A100, α = 0.8, c = 0.05: at 2,000 tokens decode never reaches the ridge."""
    found = [
        last_paying_batch(LLAMA, context, Fraction(4, 5), Fraction(1, 20))
        for context in (1, 128, 512, 822, 1_024, 2_000)
    ]
    assert found == [134, 154, 292, 1_040, None, None]
    assert last_paying_batch(LLAMA, 128, Fraction(1, 20), Fraction(1, 20)) == 0


def test_drafts_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match=r"^alpha: "):
        pays(LLAMA, 1, 10, Fraction(11, 10), Fraction(0))
    with pytest.raises(ConfigError, match=r"^cost: "):
        last_paying_batch(LLAMA, 10, Fraction(1, 2), Fraction(-1))
    with pytest.raises(ConfigError, match=r"^context: 8193 tokens are beyond"):
        verification_time(LLAMA, 1, 8_190, 3)
