"""Sizes that a search keeps fixed, while all others are drawn.

Theory of operation. A size is given by its field of Config. `fixed_sizes` reads them and refuses at
the boundary what no Config could have; `resized` puts them into sizes that were drawn. What was
drawn may contradict what is given (more drafts than the budget holds, a pool too small for a
reservation): then what was drawn gives way, and where that does not help the world is drawn again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches

from attrs import evolve, fields

from servespec.config import Config
from servespec.errors import ConfigError
from servespec.policy import VLLM_0_33, Memory, Policy

Sizes = Mapping[str, int | float]

NAMES = tuple(size.name for size in fields(Config))
CHANGED: Callable[..., Config] = evolve
HARMLESS = Config(64, 16, 64, 64, 4)
"""Sizes that contradict nothing, to try a given one among."""


def fixed_sizes(given: Iterable[str]) -> dict[str, int | float]:
    """Read `name=value`, each a size of Config.

    Raises:
        ConfigError: no such size, no number, twice the same, or no Config can have them.
    """
    found: dict[str, int | float] = {}
    for text in given:
        name, equals, number = text.partition("=")
        if not equals:
            raise ConfigError("size", f"{text!r} is no name=value", "write --size num_blocks=9")
        if name not in NAMES:
            near = get_close_matches(name, NAMES, n=3, cutoff=0.3) or NAMES
            raise ConfigError("size", f"{name!r} is unknown", f"take one of {', '.join(near)}")
        if name in found:
            raise ConfigError(name, "is given twice", "give it once")
        try:
            found[name] = float(number) if name == "watermark" else int(number)
        except ValueError:
            kind = "number" if name == "watermark" else "whole number"
            raise ConfigError(name, f"{number!r} is no {kind}", "write digits") from None
    resized(HARMLESS, VLLM_0_33, found)
    return found


def resized(config: Config, policy: Policy, sizes: Sizes) -> Config:
    """Drawn sizes with the given ones in their place.

    Raises:
        ConfigError: they do not go together, whatever gives way.
    """
    if not sizes:
        return config
    gamma = sizes.get("num_speculative_tokens", config.num_speculative_tokens)
    if "num_speculative_tokens" not in sizes:
        limits = (sizes.get("max_num_batched_tokens"), sizes.get("long_prefill_token_threshold"))
        gamma = max(min([gamma, *(limit - 1 for limit in limits if limit)]), 0)
        gamma = max(gamma, min(sizes.get("num_lookahead_tokens", 0), 1))
    threshold = config.long_prefill_token_threshold
    drawn: dict[str, int | float] = {
        "num_speculative_tokens": gamma,
        "max_num_batched_tokens": max(config.max_num_batched_tokens, 1 + gamma),
        "num_lookahead_tokens": min(config.num_lookahead_tokens, gamma + 1) if gamma else 0,
        "long_prefill_token_threshold": max(threshold, 1 + gamma) if threshold else 0,
    }
    found = CHANGED(config, **{**drawn, **sizes})
    if "max_model_len" not in sizes:
        # The same part of the pool as before.
        longest = config.max_model_len * _slots(found, policy) // _slots(config, policy)
        return evolve(found, max_model_len=max(longest, 2))
    if "num_blocks" not in sizes and policy.memory is Memory.RESERVED:
        least = policy.first_block + found.blocks_for(found.max_model_len)
        return evolve(found, num_blocks=max(found.num_blocks, least))
    return found


def _slots(config: Config, policy: Policy) -> int:
    return max(config.num_blocks - policy.first_block, 1) * config.block_size
