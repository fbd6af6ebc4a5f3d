"""Speculative decoding: what drafts are worth, in exact arithmetic (Leviathan et al. 2023).

A draft proposes γ tokens; one pass of the target scores all γ + 1 positions, keeps the drafts up to
the first that it rejects, and adds one token of its own: the correction, or after a full match the
bonus. So a round yields 1 … γ + 1 tokens. Let each draft be accepted with probability α,
independently, given that those before it were. Let a drafted token cost c passes of the target.
Then all that a round is worth follows from α, γ and c, and every number here is a `Fraction`.

The paper (arXiv 2211.17192, version 2) is cited by its numbers: Equation 1, Theorem 3.8, Corollary
3.9, Theorem 3.11. Its assumptions are two. Acceptances are independent: they are not, and in eight
of the twelve rows of its Table 4 the measured speed-up is above the computed one, so the formula is
no bound. And γ + 1 positions cost what one costs: true only while a pass is bound by memory, so
`speedup` takes the cost of a pass as a function where that is not so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import count

from attrs import frozen

from servespec.errors import ConfigError
from servespec.theory.register import Kind, theorem

Number = Fraction | int
"""What is exact. A float is refused: 0.8 is not 4/5."""

StepCost = Callable[[int], Number]
"""Positions that a pass of the target scores → what the pass costs, in any unit, > 0."""

MOST_DRAFTS = 1_000
"""Largest γ that is looked at: exact powers beyond it are slow, and no draft model is that good."""


def check_alpha(alpha: Number) -> Fraction:
    """α as a Fraction.

    Raises:
        ConfigError: it is no exact number in 0 … 1.
    """
    return _exact("alpha", alpha, "lies outside 0 ≤ alpha ≤ 1", most=1)


def check_cost(cost: Number) -> Fraction:
    """c as a Fraction.

    Raises:
        ConfigError: it is no exact number ≥ 0.
    """
    return _exact("cost", cost, "is less than 0")


def check_gamma(gamma: int) -> int:
    """γ.

    Raises:
        ConfigError: it is no whole number in 0 … MOST_DRAFTS.
    """
    whole = isinstance(gamma, int) and not isinstance(gamma, bool)
    if not (whole and 0 <= gamma <= MOST_DRAFTS):
        raise ConfigError(
            "gamma", f"{gamma!r} is no whole number in 0 … {MOST_DRAFTS}", "set another gamma"
        )
    return gamma


def _exact(name: str, value: Number, problem: str, most: int | None = None) -> Fraction:
    if not isinstance(value, Fraction | int) or isinstance(value, bool):
        raise ConfigError(name, f"{value!r} is no exact number", "give a Fraction, such as 4/5")
    if value < 0 or (most is not None and value > most):
        raise ConfigError(name, f"{value} {problem}", f"set another {name}")
    return Fraction(value)


# --- a round -------------------------------------------------------------------------------


def accepted_chances(alpha: Number, gamma: int) -> tuple[Fraction, ...]:
    """The chance that a round accepts exactly 0, 1, … γ drafts: it stops at the first rejection."""
    alpha, gamma = check_alpha(alpha), check_gamma(gamma)
    return (*(alpha**k * (1 - alpha) for k in range(gamma)), alpha**gamma)


@theorem("SPE-1", Kind.X)
def expected_tokens(alpha: Number, gamma: int) -> Fraction:
    """A target pass over γ drafts, each accepted with probability α, yields
    (1 − α^(γ+1)) / (1 − α) tokens on average, exactly, for every rational α; γ + 1 at α = 1. Of
    200,000 simulated rounds the mean is within 0.02 of it at α = 0.8, γ = 4.

    Equation 1. The sum 1 + α + … + α^γ is the same for every α: token k + 1 comes exactly if the
    first k drafts are accepted.

    Raises:
        ConfigError: α or γ is out of range.
    """
    alpha, gamma = check_alpha(alpha), check_gamma(gamma)
    return Fraction(gamma + 1) if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)


@theorem("SPE-5", Kind.X)
def speedup(
    alpha: Number, gamma: int, cost: Number, step_cost: StepCost = lambda positions: 1
) -> Fraction:
    """With drafts at c passes each, tokens come (1 − α^(γ+1)) / ((1 − α)(γc + 1)) times as fast as
    from the target alone, if a pass over γ + 1 positions costs what one over one position does.

    Theorem 3.8. In general a round costs γ·c·s(1) + s(γ+1), where s is `step_cost`: past the ridge
    of a roofline s grows with the positions, and drafts stop to pay. c is in passes over one
    position.

    Raises:
        ConfigError: α, γ or c is out of range, or a pass costs nothing.
    """
    cost, tokens = check_cost(cost), expected_tokens(alpha, gamma)
    one, all_of_them = (_exact("step_cost", step_cost(n), "is negative") for n in (1, gamma + 1))
    if not (one and all_of_them):
        raise ConfigError("step_cost", "a pass costs nothing", "give costs above 0")
    return tokens * one / (gamma * cost * one + all_of_them)


def operations(alpha: Number, gamma: int, cost: Number) -> Fraction:
    """Operations a token, as a multiple of those of the target alone (Theorem 3.11): `cost` is ĉ,
    operations of the draft a token by those of the target."""
    return (gamma * check_cost(cost) + gamma + 1) / expected_tokens(alpha, gamma)


@theorem("SPE-6", Kind.X)
def least_gain(alpha: Number, cost: Number) -> Fraction | None:
    """If α > c, one draft already gains (1 + α) / (1 + c) > 1; if α ≤ c, no number of drafts
    gains anything.

    Corollary 3.9, and its converse: see `best_gamma`.

    Returns:
        The gain of γ = 1; None where nothing gains.
    """
    alpha, cost = check_alpha(alpha), check_cost(cost)
    return (1 + alpha) / (1 + cost) if alpha > cost else None


# --- the best number of drafts -------------------------------------------------------------


@theorem("SPE-7", Kind.X)
def best_gamma(alpha: Number, cost: Number) -> int | None:
    """The speed-up as a function of γ rises and then falls, and for 0 < α < 1 it stands still at
    most once, between: its first maximum is the first γ at which one draft more gains nothing.
    There is none where every draft gains: at c = 0 < α, and at α = 1 > c.

    One draft more adds α^(γ+1) tokens and the cost c, so it gains exactly if
    g(γ) = α^(γ+1)·(1 + γc) − c·E(γ) > 0, with E the expected tokens. And
    g(γ+1) − g(γ) = −(1 − α)·α^(γ+1)·(1 + (γ+1)c) ≤ 0, below 0 for 0 < α < 1: once a draft does not
    gain, none after it does. Where g(γ) = 0, γ and γ + 1 are equally fast; the smaller is told.

    Returns:
        γ*, or None where there is none.

    Raises:
        ConfigError: α or c is out of range, or γ* is above MOST_DRAFTS.
    """
    alpha, cost = check_alpha(alpha), check_cost(cost)
    if alpha > cost and (cost == 0 or alpha == 1):
        return None
    for gamma in range(MOST_DRAFTS + 1):
        # g(γ) ≤ 0, with E by Equation 1, solved for the power
        if alpha ** (gamma + 1) <= cost / ((1 + gamma * cost) * (1 - alpha) + cost):
            return gamma
    raise ConfigError(
        "cost", f"at alpha {alpha} the best gamma is above {MOST_DRAFTS}", "set a larger cost"
    )


def limit_of_speedup(alpha: Number, cost: Number) -> Fraction | None:
    """What the speed-up comes near as γ grows, where no γ is the best; None if it is unbounded."""
    alpha, cost = check_alpha(alpha), check_cost(cost)
    if alpha < 1:
        return 1 / (1 - alpha) if cost == 0 else Fraction(0)
    return 1 / cost if cost else None


# --- a simulation --------------------------------------------------------------------------

_MASK = (1 << 64) - 1


def draw(seed: int, number: int) -> Fraction:
    """The `number`-th draw, from 0, of a stream: a Fraction in [0, 1) with 64 bits.

    SplitMix64 (Steele, Lea and Flood, 2014): draws are counted, not remembered, so a draft source
    that uses them stays a pure function.
    """
    return Fraction(_bits(seed, number), 1 << 64)


def _bits(seed: int, number: int) -> int:
    x = (seed + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def simulated_rounds(alpha: Number, gamma: int, seed: int) -> Iterator[int]:
    """Tokens of each round, without end: drafts accepted up to the first rejection, and one."""
    alpha, gamma = check_alpha(alpha), check_gamma(gamma)
    # In whole numbers: draw < α.
    numerator, denominator = alpha.numerator << 64, alpha.denominator
    drawn = count()
    while True:
        accepted = 0
        while accepted < gamma and _bits(seed, next(drawn)) * denominator < numerator:
            accepted += 1
        yield accepted + 1


# --- intervals -----------------------------------------------------------------------------


@frozen
class Interval:
    """All numbers from `low` to `high`, both included."""

    low: Fraction
    high: Fraction

    def plus(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def times(self, other: Interval) -> Interval:
        """Of numbers ≥ 0."""
        return Interval(self.low * other.low, self.high * other.high)

    def over(self, other: Interval) -> Interval:
        """Of numbers ≥ 0, by numbers > 0."""
        return Interval(self.low / other.high, self.high / other.low)

    def meets(self, other: Interval) -> bool:
        return self.low <= other.high and other.low <= self.high


def exactly(number: Number) -> Interval:
    return Interval(Fraction(number), Fraction(number))


def printed(number: str) -> Interval:
    """The numbers that are printed like this, whichever way a last digit of 5 is rounded."""
    digits = len(number.partition(".")[2])
    half = Fraction(1, 2 * 10**digits)
    return Interval(Fraction(number) - half, Fraction(number) + half)


def speedup_within(alpha: Interval, gamma: int, cost: Interval) -> Interval:
    """All speed-ups for α and c in these intervals. The expectation 1 + α + … + α^γ does not fall
    with α, and the cost of a round does not fall with c: so the corners are the extremes."""
    return Interval(speedup(alpha.low, gamma, cost.high), speedup(alpha.high, gamma, cost.low))
