"""Config: the sizes of a serving loop. What to *do* is in `servespec.policy`.

The names are vLLM's. Every size is checked when a Config is made, and the sizes against the
choices when the two meet (`check`): a machine is never built from numbers that contradict
each other. A request that does not fit is no contradiction; policy says what becomes of it.
"""

from __future__ import annotations

import math

from attrs import field, fields, fields_dict, frozen

from servespec.errors import ConfigError
from servespec.policy import Memory, Policy


def blocks_for(tokens: int, block_size: int) -> int:
    """⌈tokens / block_size⌉: blocks that hold so many token slots."""
    return -(-tokens // block_size)


@frozen
class Config:
    """Sizes, in blocks, tokens, requests and steps.

    Raises:
        ConfigError: naming the field, if a size is out of range or two contradict each other.
    """

    num_blocks: int
    """Blocks in the pool, the null block included where the policy keeps one (rule 1)."""
    block_size: int
    """Token slots in a block."""
    max_model_len: int
    """Longest text, prompt and output together (rules 16, 29)."""
    max_num_batched_tokens: int
    """Token budget of one pass (rule 14)."""
    max_num_seqs: int
    """Most requests that run at once (rule 24)."""
    long_prefill_token_threshold: int = 0
    """Most tokens of one request in a pass; 0 = no such limit; waived when it is alone."""
    watermark: float = 0.0
    """Part of the pool that an admission must leave free while something runs (rule 12)."""
    num_speculative_tokens: int = 0
    """γ, drafts proposed for a step (rules 32-36)."""
    num_lookahead_tokens: int = 0
    """Slots taken beyond the scheduled tokens, for a drafter with its own cache (rule 13)."""
    max_steps_in_flight: int = field(default=1)
    """Plans made and not yet completed."""

    def __attrs_post_init__(self) -> None:
        for attribute in fields(Config):
            kind, value = attribute.name, getattr(self, attribute.name)
            if kind == "watermark":
                part = isinstance(value, int | float) and not isinstance(value, bool)
                _demand(kind, value, part and 0 <= value < 1, "lies outside 0 ≤ watermark < 1")
                continue
            demand_size(kind, value, least(kind))
        gamma, budget = self.num_speculative_tokens, self.max_num_batched_tokens
        threshold = self.long_prefill_token_threshold
        _demand(
            "max_num_batched_tokens",
            budget,
            budget >= 1 + gamma,
            f"cannot hold one token and its {gamma} drafts: needs ≥ {1 + gamma}",
        )
        _demand(
            "long_prefill_token_threshold",
            threshold,
            not (gamma and 0 < threshold < 1 + gamma),
            f"cuts one token and its {gamma} drafts: needs 0 or ≥ {1 + gamma}",
        )
        _demand(
            "num_lookahead_tokens",
            self.num_lookahead_tokens,
            gamma > 0 or self.num_lookahead_tokens == 0,
            "looks ahead for drafts while num_speculative_tokens is 0",
        )
        _demand(
            "max_steps_in_flight",
            self.max_steps_in_flight,
            self.max_steps_in_flight == 1,
            "is more than this version of the machine keeps in flight",
        )

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many token slots."""
        return blocks_for(tokens, self.block_size)

    @property
    def watermark_blocks(self) -> int:
        """⌊watermark · num_blocks⌋, the null block counted (rule 12)."""
        return math.floor(self.watermark * self.num_blocks)


def usable_blocks(config: Config, policy: Policy) -> int:
    """Blocks that can be handed out."""
    return config.num_blocks - policy.first_block


def check(config: Config, policy: Policy) -> None:
    """Refuse sizes and choices that cannot go together.

    Raises:
        ConfigError: naming the field.
    """
    usable = usable_blocks(config, policy)
    _demand(
        "num_blocks",
        config.num_blocks,
        usable >= 1,
        "is the null block alone: nothing can be handed out",
    )
    whole = config.blocks_for(config.max_model_len)
    _demand(
        "max_model_len",
        config.max_model_len,
        policy.memory is not Memory.RESERVED or whole <= usable,
        f"reserves {whole} blocks a request, and only {usable} can be handed out",
    )
    _demand(
        "long_prefill_token_threshold",
        config.long_prefill_token_threshold,
        policy.chunked_prefill or config.long_prefill_token_threshold == 0,
        "cuts prompts into chunks while chunked_prefill is off",
    )


def least(name: str) -> int:
    """The smallest value of a size: 0 if that is what it is by default, else 1."""
    return 0 if fields_dict(Config)[name].default == 0 else 1


def demand_size(name: str, value: object, least: int) -> None:
    """A size is a whole number, and no smaller than `least`."""
    enough = isinstance(value, int) and not isinstance(value, bool) and value >= least
    _demand(name, value, enough, f"is no whole number ≥ {least}")


def _demand(name: str, value: object, condition: bool, problem: str) -> None:
    if not condition:
        raise ConfigError(name, f"{value!r} {problem}", f"set another {name}")
