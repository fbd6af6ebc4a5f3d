"""Part 4 of the article's program: tokens that a target pass yields, of drafts that it may reject.

It is too long for the machine: of 200,000 rounds the first 2,000 are the machine's own, the rest
counts `accepted + 1` tokens a round, which is what those 2,000 rounds come to.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from attrs import frozen

from servecheck.engines.whole import MakeWhole, SpecWhole
from servecheck.miniature.chance import Rng
from servecheck.miniature.loop import BLOCK_SIZE, SAMPLED, Loop, delivered, hold
from servespec.config import Config, blocks_for
from servespec.machine import Abort, Complete, Machine, Output
from servespec.policy import MINIATURE
from servespec.theory.speculation import expected_tokens

ALPHA = Fraction(4, 5)
"""α, the chance that a draft is accepted, given that those before it were."""
CHANCE = float(ALPHA)
GAMMA = 4
"""γ, drafts a round."""
ROUNDS = 200_000
"""Rounds of speculative decoding; the first of them go through the machine."""
ROUNDS_ON_MACHINE = 2_000
TOLERANCE = 0.02
"""How far the measured tokens per target pass may be from the expected, in tokens."""


@frozen
class SpeculationLine:
    rounds: int
    on_machine: int
    """Rounds, the first ones, that went through the machine."""
    measured: float
    """Tokens per target pass."""
    expected: float

    def line(self) -> str:
        return (
            f"speculative decoding: {self.measured:.3f} tokens per target pass measured, "
            f"{self.expected:.3f} expected"
        )


def draw_accepted(rng: Rng) -> int:
    """Drafts that the target accepts in one round: one draw each, up to the first rejection."""
    accepted = 0
    while accepted < GAMMA and rng.next() < CHANCE:
        accepted += 1
    return accepted


def tokens_by_machine(rng: Rng, rounds: int, make: MakeWhole = SpecWhole) -> Iterator[int]:
    """Tokens that each round delivers, from the machine: one request, one round a pass."""
    most = rounds * (GAMMA + 1)
    longest = 1 + 1 + most + GAMMA  # prompt, first token, all rounds, the drafts of one more
    config = Config(
        num_blocks=blocks_for(longest, BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        max_model_len=longest,
        max_num_batched_tokens=longest,
        max_num_seqs=1,
        num_speculative_tokens=GAMMA,
    )
    loop = Loop(Machine(config, MINIATURE), make)
    drafts = tuple(range(1, GAMMA + 1))
    # The prompt's own pass verifies nothing, and is no round; it brings the first drafts. One token
    # more than the rounds can yield is allowed, so that no round is cut short.
    loop.submit("speculating", (0,), max_tokens=1 + most + 1)
    loop.schedule()
    loop.do(Complete((Output("speculating", (SAMPLED,), drafts),)))
    for _ in range(rounds):
        loop.schedule()
        kept = drafts[: draw_accepted(rng)]
        # The target's own token, a correction or a bonus, follows those it accepts.
        yield delivered(loop.do(Complete((Output("speculating", (*kept, SAMPLED), drafts),))))
    loop.do(Abort("speculating"))
    loop.check_returned("speculative decoding")


def tokens_by_count(rng: Rng, rounds: int) -> Iterator[int]:
    """The same, without the machine: what is accepted, and the target's own token."""
    return (draw_accepted(rng) + 1 for _ in range(rounds))


def speculation_line(
    rng: Rng,
    rounds: int = ROUNDS,
    on_machine: int = ROUNDS_ON_MACHINE,
    make: MakeWhole = SpecWhole,
) -> SpeculationLine:
    """Rounds of speculative decoding, the first `on_machine` of them through the machine.

    Raises:
        MiniatureError: the mean is further from its expectation than the article allows.
    """
    tokens = sum(tokens_by_machine(rng, on_machine, make))
    tokens += sum(tokens_by_count(rng, rounds - on_machine))
    expected = float(expected_tokens(ALPHA, GAMMA))
    line = SpeculationLine(rounds, on_machine, tokens / rounds, expected)
    near = abs(line.measured - line.expected) < TOLERANCE
    hold(near, "speculative decoding", f"{line.measured:.3f} tokens, not {line.expected:.3f}")
    return line
