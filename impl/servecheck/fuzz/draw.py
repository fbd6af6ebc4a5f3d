"""Chance, and the worlds that are drawn from it.

Theory of operation. All chance is one question: a whole number below n (`Chance`). A stream seeded
by a number answers it, and so does Hypothesis (`servecheck.fuzz.machine`), which then can shrink
the answers; so everything is drawn such that a smaller answer is a simpler choice. 0 is the profile
VLLM_0_33, a wide budget, no speculation.

A *world* is a pair of sizes and choices that can go together. A policy is drawn axis by axis, so
all combinations have a chance, not only those that somebody has named; but half of the worlds are
profiles, or profiles with few other choices. Sizes are small: with four to eight blocks everything
that can go wrong with a pool goes wrong soon. They are drawn inside what `servespec.config.check`
allows, so no world is drawn and thrown away.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from enum import Enum
from random import Random
from typing import Protocol, TypeVar

from attrs import define, evolve, field

from servespec.config import Config
from servespec.plan import State
from servespec.policy import MINIATURE, PROFILES, VLLM_0_33, Batching, Memory, Policy, prioritised

PART = 16
"""Digits in one number: a float must be able to tell all numbers apart."""

T = TypeVar("T")
E = TypeVar("E", bound=Enum)


class Chance(Protocol):
    """Where all choices come from."""

    def below(self, n: int) -> int:
        """A whole number from 0 to n - 1, the smaller the simpler; n ≥ 1."""
        ...


@define
class Seeded:
    """Chance from a number: the same number, the same choices."""

    seed: int
    _random: Random = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._random = Random(self.seed)

    def below(self, n: int) -> int:
        # Not randrange, whose algorithm may change: random() is fixed for a seed.
        return int(self._random.random() * n)


def pick(chance: Chance, values: Sequence[T]) -> T:
    """One of the values, the first being the simplest."""
    return values[chance.below(len(values))]


def digits(chance: Chance, base: int, length: int) -> tuple[int, ...]:
    """A tuple of so many numbers below `base`, drawn as one number, or few."""
    found: tuple[int, ...] = ()
    while len(found) < length:
        part = min(length - len(found), PART)
        number = chance.below(base**part)
        found += tuple(number // base**i % base for i in range(part))
    return found


# --- policies ------------------------------------------------------------------------------

BASES = (*PROFILES.values(), *map(prioritised, (VLLM_0_33, MINIATURE)))
"""The policies that others are varied from."""

KEEP = (-1, 12, 4, 1, 0)
"""How much a policy keeps to its base: wholly; each axis by so many to one; not at all."""

PLAIN = 6
"""Batches that are static and memory that is reserved leave little to go wrong: of an axis on
which a policy has them depends most of what there is, so it keeps to its base more than others."""


def draw_policy(chance: Chance, bases: Sequence[Policy] = BASES) -> Policy:
    """A profile, a profile varied in few axes, or any value on every axis."""
    keep = pick(chance, KEEP)
    base = pick_base(chance, bases)
    return base if keep < 0 else varied(chance, base, keep)


def pick_base(chance: Chance, bases: Sequence[Policy]) -> Policy:
    """One of the policies; those under which little can go wrong less often."""
    base = pick(chance, bases)
    return base if rich(base) else pick(chance, bases)


def rich(policy: Policy) -> bool:
    """Blocks are taken as they are needed, by requests that come and go."""
    return policy.batching is Batching.CONTINUOUS and policy.memory is Memory.PAGED


def varied(chance: Chance, base: Policy, keep: int) -> Policy:
    """A policy drawn axis by axis; each axis has `keep` extra chances of staying as it is."""

    def axis(usual: E, more: int = 0) -> E:
        others = [value for value in type(usual) if value is not usual]
        stays = keep + more
        return [usual, *others][max(chance.below(stays + 1 + len(others)) - stays, 0)]

    def switch(usual: bool) -> bool:
        return usual if chance.below(keep + 2) <= keep else not usual

    return Policy(
        batching=axis(base.batching, PLAIN),
        memory=axis(base.memory, PLAIN),
        sharing=axis(base.sharing),
        publish=axis(base.publish),
        lookup=axis(base.lookup),
        null_block=switch(base.null_block),
        free_walk=axis(base.free_walk),
        unhashed=axis(base.unhashed),
        hit_cap=axis(base.hit_cap),
        admission=axis(base.admission),
        impossible=axis(base.impossible),
        order=axis(base.order),
        head_of_line=axis(base.head_of_line),
        readmission=axis(base.readmission),
        step_mix=axis(base.step_mix),
        after_preemption=axis(base.after_preemption),
        chunked_prefill=switch(base.chunked_prefill),
        running_cap=axis(base.running_cap),
        victim=axis(base.victim),
        pad_first_decode=switch(base.pad_first_decode),
        release=axis(base.release),
        reset=axis(base.reset),
    )


def fitting(config: Config, policy: Policy) -> Policy:
    """The policy, changed where these sizes do not allow it."""
    usable = config.num_blocks - policy.first_block
    too_long = config.blocks_for(config.max_model_len) > usable
    return evolve(
        policy,
        null_block=policy.null_block and config.num_blocks > 1,
        memory=Memory.PAGED if too_long else policy.memory,
        chunked_prefill=policy.chunked_prefill or config.long_prefill_token_threshold > 0,
    )


def draw_world(
    chance: Chance, config: Config | None = None, policy: Policy | None = None
) -> tuple[Config, Policy]:
    """Sizes and choices that go together, as far as they are not given."""
    choices = policy or draw_policy(chance)
    sizes = config or draw_config(chance, choices)
    return sizes, policy or fitting(sizes, choices)


# --- sizes ---------------------------------------------------------------------------------


AROUND = (0, 1, -1)
"""A limit, and next to it."""
SHORT = (0, -1, 1, -1)
"""A budget, beside what all seats want: rather too little than too much."""
TIGHT = (False, True, True)
"""Whether limits are drawn such that they bind together, or each by itself."""


def draw_config(chance: Chance, policy: Policy) -> Config:
    """Small sizes that the policy allows; in every other world they are tight.

    Each limit by itself is soon met; that two are met in one pass is rare, unless they are drawn
    for it: then the budget is what as many decodes as there are seats want, or one token less or
    more, and the pool has a block or two for each of them.
    """
    tight = pick(chance, TIGHT)
    seats = pick(chance, (3, 4, 3, 4, 2)) if tight else pick(chance, (4, 4, 3, 3, 2, 1))
    few = (2 * seats, seats + 1, seats + 2, 2 * seats + 1)
    usable = pick(chance, few if tight else (4, 4, 5, 6, 7, 8))
    size = pick(chance, (2, 4, 2, 1) if tight else (2, 2, 1, 4))
    gamma = pick(chance, (0, 0, 1, 1, 2) if tight else (0, 0, 1, 2, 3))
    least = 1 + gamma
    wanted = seats * least
    threshold = pick(chance, (0, 0, 0, 1, 2, 4)) if policy.chunked_prefill else 0
    budget = (
        max(wanted + pick(chance, SHORT), least) if tight else 16 - chance.below(16 - least + 1)
    )
    return Config(
        num_blocks=usable + policy.first_block,
        block_size=size,
        max_model_len=_longest(chance, policy, usable * size),
        max_num_batched_tokens=budget,
        max_num_seqs=seats,
        long_prefill_token_threshold=max(threshold, least) if threshold else 0,
        watermark=pick(chance, (0.0, 0.0, 0.2, 0.4)),
        num_speculative_tokens=gamma,
        num_lookahead_tokens=chance.below(gamma + 2) if gamma else 0,
    )


def neighbour(chance: Chance, config: Config, policy: Policy, fixed: Container[str] = ()) -> Config:
    """The same sizes but for one limit, which is moved to where it may bind: the budget to what
    some decodes want, the pool by a block, the seats by one. What is fixed stays."""
    least, usable = 1 + config.num_speculative_tokens, config.num_blocks - policy.first_block
    step = pick(chance, (-1, 1))
    wanted = least + chance.below(config.max_num_seqs * least)
    moved = {
        "max_num_batched_tokens": wanted,
        "num_blocks": policy.first_block + max(usable + step, 1),
        "max_num_seqs": max(config.max_num_seqs + step, 1),
    }
    name = pick(chance, ("max_num_batched_tokens", *moved))
    return config if name in fixed else evolve(config, **{name: moved[name]})


TIGHTENED = (
    ("max_num_batched_tokens", 0),
    ("max_num_seqs", 0),
    ("num_blocks", 0),
    ("num_blocks", -1),
)
"""Limits, and by how much they differ from what a pass used."""


def tightened(config: Config, policy: Policy, state: State, way: int) -> tuple[str, Config]:
    """The same sizes, but one limit becomes what the pass that led to this state used, or a little
    less: whatever is counted wrongly in such a pass then shows in who gets what. And which one."""
    plan = state.in_flight[-1] if state.in_flight else None
    used = {
        "max_num_batched_tokens": sum(len(e.tokens) for e in plan.entries) if plan else 0,
        "max_num_seqs": len(state.running),
        "num_blocks": config.num_blocks - len(state.pool.free),
    }
    least = {
        "max_num_batched_tokens": 1 + config.num_speculative_tokens,
        "max_num_seqs": 1,
        "num_blocks": 1 + policy.first_block,
    }
    name, apart = TIGHTENED[way]
    return name, evolve(config, **{name: max(used[name] + apart, least[name])})


def _longest(chance: Chance, policy: Policy, slots: int) -> int:
    """max_model_len: around the slots of the pool, or parts of them; reserved, mostly parts."""
    if policy.memory is Memory.RESERVED:
        return max(pick(chance, (slots // 2, slots // 3, slots // 4, slots, slots - 1)), 2)
    return max(pick(chance, (slots, slots + 3, slots - 1, slots + 1, slots // 2)), 2)
