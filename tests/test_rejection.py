"""The rejection rule, by going through all drafts and outcomes in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import product

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from servespec.actions import Complete, Output, Schedule, Submit
from servespec.chain import Tokens
from servespec.config import Config
from servespec.errors import ConfigError
from servespec.machine import Machine, Universe
from servespec.policy import MINIATURE
from servespec.theory.rejection import (
    LOSSLESS,
    Distribution,
    Rule,
    Sampler,
    acceptance,
    acceptance_chance,
    distribution,
    residual,
    round_outcomes,
    sampled,
    target_alone,
)

F = Fraction


def all_distributions(tokens: int, denominator: int) -> list[Distribution]:
    """All distributions in steps of 1/denominator."""
    steps = product(range(denominator + 1), repeat=tokens)
    return [tuple(F(s, denominator) for s in step) for step in steps if sum(step) == denominator]


def always(p: Distribution) -> Sampler:
    return lambda text: p


def saying(drafts: Tokens) -> Sampler:
    """A draft over the tokens 0 and 1 that proposes exactly these."""
    return lambda text: distribution(1 - drafts[len(text)], drafts[len(text)])


# --- one place -----------------------------------------------------------------------------


def test_a_coin_by_hand() -> None:
    """The draft says 0 three times of four, the target half the time. 0 is accepted 2 times of 3,
    1 always; a rejected 0 becomes 1. So 0 comes 3/4 · 2/3 = 1/2 of the time."""
    p, q = distribution(F(1, 2), F(1, 2)), distribution(F(3, 4), F(1, 4))
    assert acceptance_chance(p, q, 0) == F(2, 3)
    assert acceptance_chance(p, q, 1) == 1
    assert residual(p, q) == distribution(0, 1)
    assert acceptance(p, q) == F(3, 4) * F(2, 3) + F(1, 4)
    first = sampled(always(p), always(q), gamma=1, length=1)
    assert first == {(0,): F(1, 2), (1,): F(1, 2)}


@pytest.mark.parametrize(("tokens", "denominator"), [(2, 6), (2, 7), (3, 4), (4, 2)])
def test_every_pair_of_small_distributions(tokens: int, denominator: int) -> None:
    """For γ = 1 and 2: the first tokens, as many as a round can give."""
    every = all_distributions(tokens, denominator)
    for p, q in product(every, repeat=2):
        target, draft = always(p), always(q)
        wanted = target_alone(target, 2)
        assert sampled(target, draft, gamma=1, length=2) == wanted
        assert sampled(target, draft, gamma=2, length=2) == wanted


def test_the_chance_of_acceptance_is_what_two_distributions_have_in_common() -> None:
    """Corollary 3.6, against the outcomes: at γ = 1 a second token comes exactly if the draft was
    accepted. And 1 − α is half the L1 distance."""
    for p, q in product(all_distributions(3, 4), repeat=2):
        outcomes = round_outcomes(always(p), always(q), 1)
        accepted = sum((c for tokens, c in outcomes.items() if len(tokens) == 2), F(0))
        assert accepted == acceptance(p, q)
        assert 1 - accepted == sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2


def test_a_draft_like_the_target_is_always_accepted() -> None:
    p = distribution(F(1, 3), F(2, 3))
    assert {len(tokens) for tokens in round_outcomes(always(p), always(p), 3)} == {4}


def test_greedy_is_the_case_of_certain_targets() -> None:
    """A target that always says 1: the drafts up to the first other one, and then its own word."""
    certain = always(distribution(0, 1))
    for drafts in product((0, 1), repeat=3):
        kept = drafts.index(0) if 0 in drafts else 3
        assert round_outcomes(certain, saying(drafts), 3) == {(1,) * (kept + 1): 1}


# --- whole texts: target and draft depend on what was said -----------------------------------

DRAWN = all_distributions(3, 5)


def of_context(seed: int, tokens: int) -> Sampler:
    """A model whose every context has its own distribution."""
    every = [p for p in DRAWN if sum(p[:tokens]) == 1]

    @cache
    def sampler(text: Tokens) -> Distribution:
        number = seed
        for token in text:
            number = number * 31 + token + 1
        return every[number % len(every)][:tokens]

    return sampler


@pytest.mark.parametrize("gamma", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_a_text_of_a_round_and_more_is_as_by_the_target_alone(seed: int, gamma: int) -> None:
    """γ + 1 tokens jointly, which is all that one round can give; and one more, by a second."""
    target, draft = of_context(seed, 2), of_context(seed + 17, 2)
    for length in (gamma + 1, gamma + 2):
        assert sampled(target, draft, gamma, length) == target_alone(target, length)


chances = st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any)
tables = st.lists(
    chances.map(lambda c: distribution(*(F(part, sum(c)) for part in c))), min_size=13, max_size=13
)


def from_table(rows: list[Distribution]) -> Sampler:
    """One row for each text of up to two tokens of three: 1 + 3 + 9."""
    texts = [t for n in range(3) for t in product(range(3), repeat=n)]
    known = dict(zip(texts, rows, strict=True))
    return lambda text: known[text[-2:]]


@given(tables, tables, st.integers(1, 2))
def test_any_target_and_any_draft(
    target_rows: list[Distribution], draft_rows: list[Distribution], gamma: int
) -> None:
    target, draft = from_table(target_rows), from_table(draft_rows)
    assert sampled(target, draft, gamma, gamma + 1) == target_alone(target, gamma + 1)


@given(tables, tables)
def test_the_outcomes_of_a_round_are_a_distribution(
    target_rows: list[Distribution], draft_rows: list[Distribution]
) -> None:
    outcomes = round_outcomes(from_table(target_rows), from_table(draft_rows), 2)
    assert sum(outcomes.values()) == 1
    assert {len(tokens) for tokens in outcomes} <= {1, 2, 3}


# --- wrong rules do not pass ---------------------------------------------------------------

WRONG: dict[str, Rule] = {
    "a rejected draft is replaced from the target": evolve(LOSSLESS, replace=lambda p, q: p),
    "a draft is accepted with its chance in the target": evolve(
        LOSSLESS, accept=lambda p, q, token: p[token]
    ),
    "the quotient is upside down": evolve(
        LOSSLESS, accept=lambda p, q, token: min(F(1), q[token] / p[token]) if p[token] else F(0)
    ),
    "the rest is taken from the draft": evolve(LOSSLESS, replace=lambda p, q: residual(q, p)),
    "every draft is accepted": evolve(LOSSLESS, accept=lambda p, q, token: F(1)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_rule_changes_the_distribution(wrong: str) -> None:
    """Not only somewhere: for most pairs of different distributions."""
    every = all_distributions(3, 4)
    pairs = [(p, q) for p, q in product(every, repeat=2) if p != q]
    caught = sum(
        sampled(always(p), always(q), 1, 1, rule=WRONG[wrong]) != target_alone(always(p), 1)
        for p, q in pairs
    )
    assert caught > len(pairs) // 2


def test_a_bonus_is_drawn_from_the_target_not_the_draft() -> None:
    """By hand: a draft that is always accepted, and the token after it."""
    half, certain = distribution(F(1, 2), F(1, 2)), distribution(1, 0)

    def target(text: Tokens) -> Distribution:
        return half if text else certain

    assert round_outcomes(target, always(certain), 1) == {(0, 0): F(1, 2), (0, 1): F(1, 2)}


# --- and on the machine --------------------------------------------------------------------


def test_every_outcome_of_a_round_is_one_that_the_machine_offers() -> None:
    """Accepted drafts, then one token: with the drafts (1, 0), the machine takes each outcome that
    these drafts can lead to, and delivers its tokens."""
    config = Config(
        num_blocks=8,
        block_size=2,
        max_model_len=16,
        max_num_batched_tokens=16,
        max_num_seqs=1,
        num_speculative_tokens=2,
    )
    machine = Machine(config, MINIATURE)
    state = machine.apply(machine.initial(), Submit("r", (0,), 10)).state
    state = machine.apply(state, Schedule()).state
    state = machine.apply(state, Complete((Output("r", (1,), (1, 0)),))).state
    state = machine.apply(state, Schedule()).state
    offered = {
        action.outputs[0].tokens
        for action in machine.enabled(state, Universe((), (0, 1)))
        if isinstance(action, Complete)
    }
    coin = always(distribution(F(1, 2), F(1, 2)))
    found = set(round_outcomes(coin, saying((1, 0)), 2))
    assert found == {(0,), (1, 1), (1, 0, 0), (1, 0, 1)}
    assert found < offered


# --- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chances", "shown"),
    [
        ((), ""),
        ((F(1, 2),), "1/2"),
        ((F(1, 2), F(2, 3)), "1/2, 2/3"),
        ((F(3, 2), F(-1, 2)), "3/2, -1/2"),
    ],
    ids=str,
)
def test_what_is_no_distribution_is_refused(chances: Distribution, shown: str) -> None:
    with pytest.raises(ConfigError, match=rf"distribution: \({shown}\) is none; give chances"):
        distribution(*chances)


def test_distributions_over_other_tokens_are_not_compared() -> None:
    coin, die = distribution(F(1, 2), F(1, 2)), distribution(*[F(1, 6)] * 6)
    for compared in (acceptance, residual):
        with pytest.raises(ValueError, match="shorter"):
            compared(die, coin)
