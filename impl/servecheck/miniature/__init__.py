"""The article's serving loop in miniature: its five lines, out of the one machine.

Theory of operation. "Serving Language Models from Scratch" ends with a program that simulates a
block pool, two batching policies, two ways to hold memory and speculative decoding, each with
code of its own. Here nothing is simulated anew: the profiles MINIATURE, STATIC and RESERVED make
a `Machine`, a `Loop` drives it, or the fast engine in its place, and every number is a fold over
the events and states that come out. What is the article's own is its chance: the xorshift32 stream
that starts at 9, and the order in which the parts draw from it. So the parts, each in a module of
its own, run in the article's order, on one `Rng`.

    Rng ──▶ prompts, stream, lengths, acceptances ──▶ actions ──▶ Whole ──▶ events ──▶ a line

What the article's program asserts is asserted here; what does not hold raises `MiniatureError`.
"""

from __future__ import annotations

from collections.abc import Iterator

from servecheck.engines.whole import MakeWhole, SpecWhole
from servecheck.miniature.batching import BatchLine, batch_lines
from servecheck.miniature.chance import Rng
from servecheck.miniature.loop import MiniatureError
from servecheck.miniature.memory import MemoryLine, memory_line
from servecheck.miniature.pool import PoolLine, pool_line
from servecheck.miniature.speculation import SpeculationLine, speculation_line

__all__ = ["MiniatureError", "lines", "miniature"]


def miniature(
    make: MakeWhole = SpecWhole,
) -> tuple[PoolLine, BatchLine, BatchLine, MemoryLine, SpeculationLine]:
    """The article's program, on the specification unless `make` makes something else. The order of
    the parts is the order of their draws.

    Raises:
        MiniatureError: one of the article's assertions does not hold.
    """
    rng = Rng()
    pool = pool_line(rng, make=make)
    static, continuous = batch_lines(rng, make=make)
    memory = memory_line(rng, make=make)
    return pool, static, continuous, memory, speculation_line(rng, make=make)


def lines(make: MakeWhole = SpecWhole) -> Iterator[str]:
    """What the article's program prints."""
    return (result.line() for result in miniature(make))
