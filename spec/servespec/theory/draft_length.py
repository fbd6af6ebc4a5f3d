"""The draft length of assisted generation: 5 at first, 2 more after a full match, else 1 less.

The heuristic is that of assisted generation (Gante 2023; `num_assistant_tokens_schedule =
"heuristic"` in transformers, candidate_generator.py; there the length never falls below 1, and
releases since then may begin with another number). If each draft is accepted with probability α,
the length γ is a Markov chain on 1, 2, …

    γ ──▶ γ + 2            with probability α^γ
    γ ──▶ max(1, γ − 1)    otherwise

Its drift at γ > 1 is 3·α^γ − 1: it rises while α^γ > 1/3 and falls beyond, so it keeps near
γ = ln 3 / −ln α, whatever drafts cost. For α < 1 the drift is below −1/2 from some γ on, so the
chain comes back to 1 again and again and has a long run; at α = 1 it only grows, and has none.

In the long run as many steps lead over the edge between k and k + 1 upwards (from k and k − 1) as
downwards (from k + 1). That gives the stationary chances one by one, up to a factor:

    π(k+1)·(1 − α^(k+1)) = π(k)·α^k + π(k−1)·α^(k−1),    π(0) = 0

What is cut off behind K is bounded: from there on π shrinks, every two places, at least by
r = (α^K + α^(K−1)) / (1 − α^(K+1)). And ups and downs cancel, so a full match comes
(1 − (1 − α)·π(1)) / 3 of the time, nearly one round in three; by Equation 1 that is

    (1 − α/3) / (1 − α) + α·π(1) / 3    tokens a pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import islice
from math import ceil, floor

from servespec.errors import ConfigError
from servespec.theory.register import Kind, theorem
from servespec.theory.speculation import (
    MOST_DRAFTS,
    Interval,
    Number,
    check_alpha,
    check_cost,
    check_gamma,
    exactly,
    expected_tokens,
)

START, UP, DOWN, LEAST = 5, 2, 1, 1
"""First length; what a full match adds; what anything else takes away; the floor."""


def next_length(gamma: int, accepted: int) -> int:
    """The drafts of the next round, after one in which `accepted` of γ were accepted."""
    return gamma + UP if accepted == gamma else max(LEAST, gamma - DOWN)


Lengths = Mapping[int, Fraction]
"""Draft lengths, and the chance of each."""


def lengths(alpha: Number, start: int = START) -> Iterator[Lengths]:
    """The distribution of the draft length in each round, the first one first, without end."""
    alpha, now = check_alpha(alpha), {max(LEAST, check_gamma(start)): Fraction(1)}
    while True:
        yield now
        after: defaultdict[int, Fraction] = defaultdict(Fraction)
        for gamma, chance in now.items():
            full = alpha**gamma
            for accepted, part in ((gamma, full), (0, 1 - full)):
                if part:
                    after[next_length(gamma, accepted)] += chance * part
        now = after


@theorem("SPE-8", Kind.X)
def tokens_after(alpha: Number, rounds: int, start: int = START) -> Fraction:
    """The draft length of assisted generation (5 at first, two more after a full match, else one
    less, at least 1) is a Markov chain, so the tokens of n rounds are expected exactly: the sum,
    over rounds and lengths, of the chance of the length in the round times Equation 1.

    Returns:
        Expected tokens a target pass over the first `rounds` rounds, at least one.
    """
    if rounds < 1:
        raise ConfigError("rounds", f"{rounds} is no whole number ≥ 1", "play at least one")
    total = Fraction(0)
    for now in islice(lengths(alpha, start), rounds):
        total += sum(chance * expected_tokens(alpha, gamma) for gamma, chance in now.items())
    return total / rounds


def rises(alpha: Number, gamma: int) -> bool:
    """The length γ > 1 grows on average: α^γ > 1/3."""
    return 3 * check_alpha(alpha) ** gamma > 1


@theorem("SPE-9", Kind.X)
def long_run(
    alpha: Number, cost: Number = 0, within: Fraction = Fraction(1, 10**6)
) -> Interval | None:
    """For every α < 1 the draft length of assisted generation has a long run, about the γ at which
    α^γ = 1/3. No cost is balanced against it, and its speed-up is a mean of those at the lengths
    that it takes: so it is never above that of the best γ.

    Returns:
        An interval, at most `within` wide, that holds the speed-up in the long run; at cost 0 these
        are the tokens a target pass. None at α = 1, where the length grows without end.

    Raises:
        ConfigError: α is so near to 1 that more than MOST_DRAFTS lengths matter.
    """
    alpha, cost = check_alpha(alpha), check_cost(cost)
    if alpha == 1:
        return None
    before, here = exactly(0), exactly(1)  # π(k−1), π(k)
    paid = tokens = exactly(0)  # Σ π·(1 + γc), Σ π·E(γ), up to k
    for k in range(1, MOST_DRAFTS + 1):
        last, power, other = (_power(alpha, n) for n in (k - 1, k, k + 1))
        fails = Interval(1 - other.high, 1 - other.low)  # at k + 1
        paid = paid.plus(here.times(exactly(1 + k * cost)))
        tokens = tokens.plus(here.times(fails).over(exactly(1 - alpha)))
        shrink = power.plus(last).over(fails).high
        if shrink < 1:
            # Places K+2i−1 and K+2i hold at most m·rⁱ each, i = 1, 2, …
            m, geometric = max(before.high, here.high), shrink / (1 - shrink)
            left = 2 * m * geometric
            left_drafts = 2 * m * (k * geometric + 2 * geometric / (1 - shrink))
            low = tokens.low / (paid.high + left + cost * left_drafts)
            high = (tokens.high + left / (1 - alpha)) / paid.low
            if high - low <= within:
                return Interval(low, high)
        risen = here.times(power).plus(before.times(last))
        before, here = here, _rounded(risen.over(fails))
    raise ConfigError("alpha", f"{alpha} is too near to 1", "set a smaller alpha")


_GRAIN = 1 << 256
"""Below 1/_GRAIN an interval may become wider, so that its fractions stay short."""


def _power(alpha: Fraction, exponent: int) -> Interval:
    return _rounded(exactly(alpha**exponent))


def _rounded(exact: Interval) -> Interval:
    low, high = floor(exact.low * _GRAIN), ceil(exact.high * _GRAIN)
    return Interval(Fraction(low, _GRAIN), Fraction(high, _GRAIN))
