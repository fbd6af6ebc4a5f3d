"""Where drafts come from: a source is asked with the text so far, and proposes what may follow.

A source is a pure function: it has no memory, so a `turn` says how often it was asked before for
the same request. Nothing obliges it to be right. Three are here: drafts that are *given*; the
look-up of the text's last *n-gram* in the text itself, which needs no model; and a *fixed rate*,
for which each draft is what the target itself would say, with a chance of α, and something else
otherwise: so that acceptances are independent, as Equation 1 has them
(`servespec.theory.speculation`).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Protocol

from attrs import field, frozen

from servespec.chain import Token, Tokens
from servespec.errors import ConfigError
from servespec.theory.speculation import MOST_DRAFTS, check_alpha, draw

Model = Callable[[Tokens], Token]
"""A greedy target: the text so far → the token that follows."""


class Source(Protocol):
    """Where the drafts of one request come from."""

    def propose(self, text: Tokens, turn: int, gamma: int) -> Tokens:
        """At most `gamma` tokens that may follow `text`; asked for the `turn`-th time, from 0."""
        ...


@frozen
class Given:
    """The drafts of each turn, cut to γ; none when the list has ended."""

    lists: tuple[Tokens, ...] = ()

    def propose(self, text: Tokens, turn: int, gamma: int) -> Tokens:
        return self.lists[turn][:gamma] if turn < len(self.lists) else ()


NOTHING = Given()
"""The source of a target alone."""


@frozen
class NGram:
    """Prompt look-up: what followed the last n tokens when they stood in the text before.

    The rule is that of vLLM 0.33.0's NgramProposer, after prompt look-up decoding (Saxena 2023): of
    the suffixes of `least` to `most` tokens the longest that stands earlier in the text, overlap
    allowed; of its places the first; from there what follows, at most γ tokens and at most to the
    end of the text.

    Raises:
        ConfigError: not 1 ≤ least ≤ most.
    """

    least: int
    most: int = field()

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ConfigError(
                "n-gram", f"{self.least} … {self.most} are no lengths", "give 1 ≤ least ≤ most"
            )

    def propose(self, text: Tokens, turn: int, gamma: int) -> Tokens:
        for n in range(min(self.most, len(text) - 1), self.least - 1, -1):
            suffix = text[-n:]
            for start in range(len(text) - n):
                if text[start : start + n] == suffix:
                    return text[start + n : start + n + gamma]
        return ()


@frozen
class FixedRate:
    """Always γ drafts, each of which the target accepts with probability α, independently, given
    those before it. After a wrong one it does not matter what follows.

    `wrong` is any function that turns a token into another one. The draws of each turn are its own,
    MOST_DRAFTS of the stream (`speculation.draw`).

    Raises:
        ConfigError: α is no exact number in 0 … 1.
    """

    model: Model
    alpha: Fraction = field(converter=check_alpha)
    seed: int
    wrong: Callable[[Token], Token] = lambda token: token + 1

    def propose(self, text: Tokens, turn: int, gamma: int) -> Tokens:
        drafts: Tokens = ()
        for place in range(gamma):
            right = self.model(text + drafts)
            agrees = draw(self.seed, turn * MOST_DRAFTS + place) < self.alpha
            drafts = (*drafts, right if agrees else self.wrong(right))
        return drafts
