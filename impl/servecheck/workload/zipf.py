"""The benchmark's stream: prompts that begin with one of a few shared prefixes, by Zipf's law.

Theory of operation. `families` prefixes are drawn, of different lengths. Each request begins with
one of them, the k-th most popular in proportion to 1/(k+1)^s, and goes on with tokens of its own up
to a length drawn evenly; nothing is cut at block boundaries. So a cache of a few thousand blocks
hits about half of the prompt tokens and evicts all the time. The stream is a function of the seed.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from itertools import accumulate

from attrs import frozen

from servespec.chain import Tokens


@frozen
class Served:
    """A request, and what the model will answer. Lengths in tokens."""

    id: str
    prompt: Tokens
    output: Tokens


@frozen
class Shape:
    """How a stream is drawn."""

    requests: int = 2000
    families: int = 64
    skew: float = 1.1
    prompt: tuple[int, int] = (512, 2048)
    prefix: tuple[int, int] = (128, 1024)
    output: int = 64
    vocabulary: int = 32_000


def stream(shape: Shape | None = None, seed: int = 0) -> tuple[Served, ...]:
    """The stream of this shape and seed."""
    shape = shape or Shape()
    chance = random.Random(seed)

    def tokens(count: int) -> Tokens:
        return tuple(chance.randrange(shape.vocabulary) for _ in range(count))

    prefixes = [tokens(chance.randint(*shape.prefix)) for _ in range(shape.families)]
    shares = list(accumulate(1.0 / (k + 1) ** shape.skew for k in range(shape.families)))
    served = []
    for number in range(shape.requests):
        family = bisect_left(shares, chance.random() * shares[-1])
        length = chance.randint(*shape.prompt)
        shared = prefixes[family][:length]
        prompt = shared + tokens(length - len(shared))
        served.append(Served(f"r{number}", prompt, tokens(shape.output)))
    return tuple(served)
