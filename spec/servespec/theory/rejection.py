"""The rejection rule of speculative sampling, exactly: output as of the target alone.

A draft x, drawn from q, is accepted with probability min(1, p(x)/q(x)), where p is the target's
distribution at this place; if it is rejected, the token is drawn from norm(max(0, p − q)) instead
and the rest of the drafts is thrown away; if all are accepted, one more token is drawn from p
(Leviathan et al. 2023, Algorithm 1; Chen et al. 2023). Why the outcome is distributed as p:

    accepted as x:   q(x)·min(1, p(x)/q(x)) = min(p(x), q(x))
    rejected:        1 − Σ min(p, q) = Σ max(0, p − q), then x by max(0, p(x) − q(x)) / that sum
    together:        min(p(x), q(x)) + max(0, p(x) − q(x)) = p(x)

and, as this holds at every place given the text before it, for whole texts, by induction. Here
distributions are tuples of `Fraction`s, index is token, and what comes out is found by going
through all drafts and all outcomes, not by the argument above. A rule is a value, so that wrong
ones can be put through the same mill.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import product

from attrs import frozen

from servespec.chain import Token, Tokens
from servespec.errors import ConfigError
from servespec.theory.register import Kind, theorem
from servespec.theory.speculation import check_gamma

Distribution = tuple[Fraction, ...]
"""The chance of each token 0, 1, …"""

Sampler = Callable[[Tokens], Distribution]
"""A model: the text so far → the distribution of the next token."""

Outcomes = Mapping[Tokens, Fraction]
"""Texts, and the chance of each."""


def distribution(*chances: Fraction | int) -> Distribution:
    """Chances that make a distribution.

    Raises:
        ConfigError: one is negative, or they do not add up to 1.
    """
    exact = tuple(Fraction(chance) for chance in chances)
    if any(chance < 0 for chance in exact) or sum(exact) != 1:
        shown = ", ".join(map(str, exact))
        raise ConfigError("distribution", f"({shown}) is none", "give chances ≥ 0 with sum 1")
    return exact


def acceptance_chance(p: Distribution, q: Distribution, token: Token) -> Fraction:
    """min(1, p/q) of a token that was drafted, so q > 0."""
    return min(Fraction(1), p[token] / q[token])


def residual(p: Distribution, q: Distribution) -> Distribution:
    """norm(max(0, p − q)): what a rejected draft is replaced from. Where p = q nothing is rejected,
    so anything will do, and it is p."""
    rest = tuple(max(Fraction(0), a - b) for a, b in zip(p, q, strict=True))
    total = sum(rest)
    return tuple(r / total for r in rest) if total else p


@frozen
class Rule:
    """How drafts are verified: of target p and draft q."""

    accept: Callable[[Distribution, Distribution, Token], Fraction]
    replace: Callable[[Distribution, Distribution], Distribution]


LOSSLESS = Rule(acceptance_chance, residual)


def acceptance(p: Distribution, q: Distribution) -> Fraction:
    """α at one place: Σ min(p, q), the chance that a draft is accepted (Corollary 3.6)."""
    return Fraction(sum(min(a, b) for a, b in zip(p, q, strict=True)))


def round_outcomes(
    target: Sampler, draft: Sampler, gamma: int, text: Tokens = (), rule: Rule = LOSSLESS
) -> Outcomes:
    """What one round adds to `text`, 1 … γ + 1 tokens, with the chance of each.

    All γ drafts are drawn first, then verified from left to right, as an engine does it.
    """
    found: defaultdict[Tokens, Fraction] = defaultdict(Fraction)
    vocabulary = range(len(target(text)))
    for drafts in product(vocabulary, repeat=check_gamma(gamma)):
        reached = _text_chance(draft, text, drafts)
        if not reached:
            continue
        for place, token in enumerate(drafts):
            before = text + drafts[:place]
            p, q = target(before), draft(before)
            accepted = rule.accept(p, q, token)
            for other, chance in enumerate(rule.replace(p, q)):
                found[(*drafts[:place], other)] += reached * (1 - accepted) * chance
            reached *= accepted
        for bonus, chance in enumerate(target(text + drafts)):
            found[(*drafts, bonus)] = reached * chance
    return {tokens: chance for tokens, chance in found.items() if chance}


def _text_chance(sampler: Sampler, text: Tokens, tokens: Tokens) -> Fraction:
    """The chance that a model goes on from `text` with `tokens`."""
    chance = Fraction(1)
    for place, token in enumerate(tokens):
        chance *= sampler(text + tokens[:place])[token]
    return chance


def target_alone(target: Sampler, length: int, text: Tokens = ()) -> Outcomes:
    """The first `length` tokens after `text`, sampled one by one."""
    vocabulary = range(len(target(text)))
    chances = (
        (tokens, _text_chance(target, text, tokens))
        for tokens in product(vocabulary, repeat=length)
    )
    return {tokens: chance for tokens, chance in chances if chance}


@theorem("SPE-2", Kind.X)
def sampled(
    target: Sampler,
    draft: Sampler,
    gamma: int,
    length: int,
    text: Tokens = (),
    rule: Rule = LOSSLESS,
) -> Outcomes:
    """The rejection rule returns the target distribution exactly: whatever the draft proposes,
    texts made by rounds of γ drafts have the chances that they have under the target alone.

    Returns:
        The first `length` tokens after `text`, made by as many rounds as it takes, with their
        chances: equal to `target_alone(target, length, text)`.
    """
    found: defaultdict[Tokens, Fraction] = defaultdict(Fraction)
    for tokens, chance in _rounds(target, draft, gamma, length, text, rule):
        found[tokens] += chance
    return dict(found)


def _rounds(
    target: Sampler, draft: Sampler, gamma: int, length: int, text: Tokens, rule: Rule
) -> Iterator[tuple[Tokens, Fraction]]:
    for tokens, chance in round_outcomes(target, draft, gamma, text, rule).items():
        if len(tokens) >= length:
            yield tokens[:length], chance
            continue
        left = length - len(tokens)
        for more, then in _rounds(target, draft, gamma, left, text + tokens, rule):
            yield tokens + more, chance * then
