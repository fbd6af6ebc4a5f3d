"""Part 3 of the article's program: how many sequences fit into memory that is reserved, and into
pages."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from servecheck.engines.whole import MakeWhole, SpecWhole
from servecheck.miniature.chance import Rng
from servecheck.miniature.loop import BLOCK_SIZE, Loop, distinct, hold
from servespec.config import Config
from servespec.events import Admitted
from servespec.machine import Machine
from servespec.policy import MINIATURE, RESERVED, Policy


@frozen
class MemoryLine:
    reserved: int
    """Sequences that fit if each reserves the greatest length."""
    paged: int
    block_size: int

    def line(self) -> str:
        return (
            f"memory: {self.reserved} sequences fit with reservation, "
            f"{self.paged} with {self.block_size}-token blocks"
        )


def admitted_at_once(
    lengths: Sequence[int],
    policy: Policy,
    budget: int = 32_768,
    max_length: int = 2048,
    block_size: int = BLOCK_SIZE,
    make: MakeWhole = SpecWhole,
) -> int:
    """How many sequences, in order, memory for `budget` tokens admits in one pass.

    The budget of the pass is no bound: all sequences could be computed in it.
    """
    config = Config(
        num_blocks=budget // block_size,
        block_size=block_size,
        max_model_len=max_length,
        max_num_batched_tokens=max(max_length, sum(lengths)),
        max_num_seqs=len(lengths),
    )
    loop = Loop(Machine(config, policy), make)
    for number, length in enumerate(lengths):
        loop.submit(str(number), distinct(number, length), max_tokens=1)
    return sum(isinstance(event, Admitted) for event in loop.schedule())


def memory_line(
    rng: Rng,
    reserved: Policy = RESERVED,
    paged: Policy = MINIATURE,
    make: MakeWhole = SpecWhole,
) -> MemoryLine:
    """64 sequences of 50 to 500 tokens in memory for 32,768.

    Raises:
        MiniatureError: pages hold no more sequences than reservations.
    """
    # The article stops drawing at the first sequence that does not fit. With its seed all fit.
    lengths = [rng.between(50, 500) for _ in range(64)]
    line = MemoryLine(
        admitted_at_once(lengths, reserved, make=make),
        admitted_at_once(lengths, paged, make=make),
        BLOCK_SIZE,
    )
    more = line.paged > line.reserved
    hold(more, "memory", f"{line.paged} sequences fit in pages, {line.reserved} with reservation")
    return line
