"""The article's chance: one stream of numbers, from which its parts draw in their order."""

from __future__ import annotations

from attrs import define

from servespec.chain import Tokens


@define
class Rng:
    """xorshift32 (Marsaglia, 2003). All else of the run follows from the order of the draws."""

    state: int = 9

    def next(self) -> float:
        """A number in [0, 1), of 32 bits."""
        x = self.state
        x ^= (x << 13) & 0xFFFFFFFF
        x ^= x >> 17
        x ^= (x << 5) & 0xFFFFFFFF
        self.state = x
        return x / 0x1_0000_0000

    def between(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return low + int(self.next() * (high - low + 1))

    def tokens(self, count: int, low: int, high: int) -> Tokens:
        return tuple(self.between(low, high) for _ in range(count))
